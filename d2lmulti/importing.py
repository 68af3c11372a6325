"""Import what is large in less time: a framework's import is most of a short run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quickly(*unwanted: str) -> Iterator[None]:
    """Import in the block, without the unwanted modules and without collecting garbage.

    What is imported is no garbage, so it also counts as old at once. Who asks for an
    unwanted module in the block gets an ImportError; afterwards it can be imported.
    """
    collects, before = gc.isenabled(), len(sys.modules)
    hidden = {*unwanted} - sys.modules.keys()
    gc.disable()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        if len(sys.modules) > before and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # into the oldest generation, which is seldom gone through
        if collects:
            gc.enable()
