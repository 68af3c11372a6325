"""Imports that a framework tries and does not need here, hidden while it is imported.

MXNet looks for scikit-learn, for the base of a class it has long given up, and for
`scipy.stats`, for the quantisation of trained networks: half of the time of its import.
"""

from __future__ import annotations

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
