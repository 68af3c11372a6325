"""The evidence page: what was tried, and what came out, from runs of real programs.

    python -m tools.evidence [--only TABLE ...] [--quick] [--output FOLDER]

One module makes one table: `rows` tries, and `wrong` says what should not be. `shown/`
lays the tables out. The tests' own building blocks do the work.
"""

import os
import sys
from pathlib import Path

# One thread each, as the tests have it: read when NumPy and frameworks are imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

ROOT = Path(__file__).resolve().parents[2]
# Where the tests' building blocks are, and, under pytest, already found.
sys.path += [str(p) for p in (ROOT / "tests", ROOT / "tools") if str(p) not in sys.path]
