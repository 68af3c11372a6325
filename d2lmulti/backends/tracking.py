"""Tensors with a simulated device, where the framework allows it.

A simulated device is on the CPU, so a framework sees one device where a program means
several, and a forgotten copy raises no error. With `track`, operations on tensors of
`sim:0` and `sim:1` raise an error, and copies between them are reported to the ledger.
Chapter: *setup*.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

import numpy as np

from ..events import notify, observers
from . import tracked_frameworks

_FRAMEWORK = ("torch.", "mxnet.", "contextlib.")


def track(framework: str) -> ExitStack:
    """Record the simulated devices of a framework's tensors until the stack closes.

    Does nothing for Paddle: its place of the CPU has no number, and its tensors have no
    hooks that the backward pass also runs.
    """
    stack = ExitStack()
    if framework in ("torch", "mxnet", "numpy") and framework not in tracked_frameworks:
        if framework == "torch":
            hooks = importlib.import_module(".tracked_torch", __package__).hooks
            stack.enter_context(hooks())
        elif framework == "mxnet":
            stack.enter_context(_mxnet_hooks())
        # A reference, so that the hooks live until the stack is closed.
        tracked_frameworks[framework] = stack
        stack.callback(tracked_frameworks.pop, framework)
    return stack


def one_device(devices: Iterable[str]) -> str:
    """Return the one device among these, `cpu` if there is none.

    Raises `RuntimeError`, as PyTorch does on GPUs, if there are several.
    """
    names = sorted(set(devices))
    if len(names) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two "
            f"devices, {' and '.join(names)}!"
        )
    return names[0] if names else "cpu"


def report_copy(source: str, target: str, count: int, size: int) -> None:
    """Report a copy of `count` elements of `size` bytes to the observers.

    The library's own copies are not reported here, but as part of a plan.
    """
    if source == target or target == "cpu" or not count or not observers.get():
        return
    if caller("d2lmulti.backends").startswith("d2lmulti."):
        return
    if source == "cpu":
        notify("on_load", count * size)
    else:
        first, second = (int(name.split(":")[1]) for name in (source, target))
        notify("on_copy", first, second, count, size)


def caller(package: str) -> str:
    """Return the module, with a dot, that called the package or a framework."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "") + "."
        if not module.startswith((f"{package}.", *_FRAMEWORK)):
            return module
        frame = frame.f_back
    return ""


_copying: ContextVar[bool] = ContextVar("copying", default=False)


@contextmanager
def _mxnet_hooks() -> Iterator[None]:
    """Check every MXNet operation that a program calls, in all threads.

    `sim:1` is `mx.cpu(2)`: MXNet keeps the number of a CPU and copies between two of
    them, but allows both in one operation. Its backward passes are not checked.
    """
    import mxnet as mx
    from mxnet.ndarray import register

    from .mxnet import device_of

    kinds = (mx.nd.NDArray, mx.np.ndarray)
    invoke, original = register._imperative_invoke, [kind.copyto for kind in kinds]

    def checked_invoke(
        handle: Any, inputs: Any, keys: Any, values: Any, out: Any, *rest: Any
    ) -> Any:
        if not _copying.get():
            outputs = out if isinstance(out, (list, tuple)) else [out]
            existing = [x for x in outputs if x is not None]
            one_device(device_of(x) for x in [*inputs, *existing])
        return invoke(handle, inputs, keys, values, out, *rest)

    def reporting(copyto: Any) -> Any:
        def copyto_and_report(self: Any, other: Any) -> Any:
            token = _copying.set(True)
            try:
                result = copyto(self, other)
            finally:
                _copying.reset(token)
            if result is not False:  # to itself
                ends = device_of(self), device_of(result)
                report_copy(*ends, self.size, np.dtype(self.dtype).itemsize)
            return result

        return copyto_and_report

    register._imperative_invoke = checked_invoke
    for kind in kinds:
        kind.copyto = reporting(kind.copyto)
    try:
        yield
    finally:
        register._imperative_invoke = invoke
        for kind, copyto in zip(kinds, original, strict=True):
            kind.copyto = copyto
