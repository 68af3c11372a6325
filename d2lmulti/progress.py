"""One progress bar for everything that takes more than a few seconds."""

from __future__ import annotations

import os
import sys
from typing import Any


def progress(total: int, unit: str, description: str, wanted: bool = True) -> Any:
    """Return a progress bar on stderr, shown on a terminal and in a notebook.

    D2LMULTI_QUIET=1 silences it, and so does `wanted=False`.
    """
    from tqdm import tqdm  # here, so that importing d2lmulti stays fast

    ipython = sys.modules.get("IPython")
    notebook = ipython is not None and ipython.get_ipython() is not None
    terminal = sys.stderr is not None and sys.stderr.isatty()  # None where it is closed
    quiet = os.environ.get("D2LMULTI_QUIET") == "1" or not (notebook or terminal)
    options = {"unit": unit, "unit_scale": True, "disable": quiet or not wanted}
    return tqdm(total=total, desc=description, **options)
