"""`python -m d2lmulti`: see `cli`.

The import names the package, because Paddle's launcher runs this folder as a script.
"""

import sys

from d2lmulti.cli import main

if __name__ == "__main__":
    sys.exit(main())
