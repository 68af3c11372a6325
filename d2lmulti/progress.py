"""One progress bar for everything that takes more than a few seconds."""

from __future__ import annotations

import os
import sys
from typing import Any


def progress(total: int, unit: str, description: str, wanted: bool = True) -> Any:
    """Make a progress bar on stderr; silent in tests, in pipes, and when asked.

    D2LMULTI_QUIET=1 silences it, and so does `wanted=False`. A bar is shown on a
    terminal and in a notebook.
    """
    from tqdm import tqdm  # here, so that importing d2lmulti stays quick

    ipython = sys.modules.get("IPython")  # a mere import of it is not yet a notebook
    notebook = ipython is not None and ipython.get_ipython() is not None
    terminal = sys.stderr is not None and sys.stderr.isatty()  # None where it is closed
    shown = terminal or notebook
    quiet = os.environ.get("D2LMULTI_QUIET") == "1" or not (shown and wanted)
    return tqdm(
        total=total, unit=unit, desc=description, unit_scale=True, disable=quiet
    )
