"""MXNet arrays that know their simulated device: `sim:1` is `mx.cpu(2)`.

MXNet keeps the number of a CPU, and copies between two of them, but mixes them in one
operation. So every operation that a program calls is checked first. Backward passes
are MXNet's own: they are not checked, and what they copy is not reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.ndarray import register

from .mxnet import device_of
from .tracking import one_device, report_copy

copying: ContextVar[bool] = ContextVar("copying", default=False)
invoke = register._imperative_invoke


def checked_invoke(handle: Any, inputs: Any, keys: Any, values: Any, *rest: Any) -> Any:
    """Run an operation whose inputs and output, the first of `rest`, share a device."""
    if not copying.get():
        out = rest[0] if rest[0] is not None else []
        outputs = list(out) if isinstance(out, (list, tuple)) else [out]
        one_device(device_of(x) for x in [*inputs, *outputs])
    return invoke(handle, inputs, keys, values, *rest)


def reporting(copyto: Any) -> Any:
    """Let `copyto` go from device to device, and report it."""

    def copyto_and_report(self: Any, other: Any) -> Any:
        token = copying.set(True)
        try:
            result = copyto(self, other)
        finally:
            copying.reset(token)
        if result is not False:  # to itself
            ends = device_of(self), device_of(result)
            report_copy(*ends, self.size, np.dtype(self.dtype).itemsize)
        return result

    return copyto_and_report


@contextmanager
def hooks() -> Iterator[None]:
    """Put the checks in place, for all threads, and take them away again."""
    kinds = (mx.nd.NDArray, mx.np.ndarray)
    before = [kind.copyto for kind in kinds]
    register._imperative_invoke = checked_invoke
    for kind in kinds:
        kind.copyto = reporting(kind.copyto)
    try:
        yield
    finally:
        register._imperative_invoke = invoke
        for kind, copyto in zip(kinds, before, strict=True):
            kind.copyto = copyto
