"""For mypy, never run: every backend module is a `Backend`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from d2lmulti.backends import mxnet, numpy, paddle, pytorch
    from d2lmulti.backends.protocol import Backend

    modules: list[Backend] = [pytorch, mxnet, paddle, numpy]
