"""What makes the import of a framework shorter: no garbage collected, less to import.

MXNet looks for scikit-learn, for the base of a class it has long given up, and for
`scipy.stats`, for the quantisation of trained networks: half of the time of its import.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hidden(*modules: str) -> Iterator[None]:
    """Let an import inside find none of the modules, unless they are loaded already."""
    loaded: dict[str, Any] = sys.modules
    ours = [module for module in modules if module not in loaded]
    loaded.update(dict.fromkeys(ours))  # None: `import` raises ImportError
    try:
        yield
    finally:
        for module in ours:
            del loaded[module]


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: what an import makes stays, a million objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
