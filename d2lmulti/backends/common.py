"""What the backends share: dtypes, names of devices, views of memory, reports."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import DeviceUnavailable, InvalidInput
from . import tracking
from .protocol import Backend

# -- dtypes, by the names that NumPy gives them -----------------------------------

# A message between processes names a dtype by its place here.
DTYPES = (
    *("float32", "float64", "float16", "int64", "int32", "uint8", "bool"),
    "bfloat16",
)
NUMPY_DTYPES = DTYPES[:-1]  # NumPy and MXNet have no bfloat16
BFLOAT16 = np.dtype("V2")  # to NumPy it is two bytes without a meaning


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return what NumPy sees in the memory of a tensor of that dtype."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def dtype_name(dtype: Any, held: Collection[str]) -> str:
    """Return NumPy's name of a dtype; raise `InvalidInput` if it is not in `held`."""
    try:
        name = dtype if dtype == "bfloat16" else np.dtype(dtype).name
    except TypeError:
        name = "none"
    if name not in held:
        raise InvalidInput(
            f"expected a dtype among {', '.join(held)}, got {dtype!r}; convert the "
            "values first, for example with numpy.asarray(values, 'float32')"
        )
    return name


def numeric(value: np.ndarray | Sequence[Any], held: Collection[str]) -> np.ndarray:
    """View values as plain NumPy: row-major, native bytes, a dtype among `held`.

    PyTorch takes no negative strides and no foreign byte order. Raises `InvalidInput`
    for strings and objects.
    """
    found = np.asarray(value, order="C")
    name = dtype_name(found.dtype, [name for name in held if name in NUMPY_DTYPES])
    return found.astype(name, copy=False)


# -- devices ----------------------------------------------------------------------

_DEVICE = re.compile(r"(?:cpu(?::0)?|(gpu|cuda|sim):([0-9]+))")


def parse_device(device: object) -> tuple[str, int]:
    """Split a device (anything whose `str` is a device name) into kind and index.

    `cuda:1` is read as `gpu:1`. Raises `InvalidInput` for anything else.
    """
    kind, index = getattr(device, "kind", None), getattr(device, "index", None)
    if kind in ("gpu", "sim") and type(index) is int:
        return kind, index  # a Device, which need not be read as text
    match = _DEVICE.fullmatch(str(device))
    if match is None:
        raise InvalidInput(
            f"expected a device such as 'cpu', 'gpu:0' or 'sim:1', got {device!r}; "
            "list this machine's devices with `python -m d2lmulti doctor`"
        )
    kind, index = match.groups()
    if kind is None:
        return "cpu", 0
    return ("sim" if kind == "sim" else "gpu"), int(index)


def resolve_device(device: object, gpu_count: int, framework: str) -> tuple[str, int]:
    """Return the physical place of a device: ("cpu", 0), ("gpu", i) or ("sim", i).

    Simulated devices are assigned to the GPUs in turn, or all to the CPU. They keep
    their number where tensors know it (see `tracking.py`) and there are no two GPUs.
    Raises `DeviceUnavailable` for a GPU that the framework does not see.
    """
    kind, index = parse_device(device)
    if kind == "sim" and framework in tracking.frameworks and gpu_count < 2:
        return kind, index
    if kind == "sim":
        return ("gpu", index % gpu_count) if gpu_count else ("cpu", 0)
    if kind == "gpu" and index >= gpu_count:
        raise DeviceUnavailable(
            f"expected a GPU that {framework} can use, got gpu:{index} where it sees "
            f"{gpu_count}; use devices(n), which simulates the missing ones, or 'cpu'"
        )
    return kind, index


def own_gpu(B: Backend, local_rank: int, local_size: int) -> int | None:
    """Return the GPU of one of `local_size` processes here; None if they share."""
    choose = getattr(B, "own_gpu", None)
    if choose is not None:
        return choose(local_rank, local_size)
    return local_rank if B.gpu_count() >= local_size else None


def describe_gpus(B: Backend) -> list[str]:
    """Return one line per GPU, with the version of NCCL and which it cannot use."""
    describe = getattr(B, "describe_gpus", None)
    return describe() if describe is not None else []


# -- NumPy on the memory of tensors -----------------------------------------------

_PIECE = 1 << 14  # elements of bfloat16 widened at a time: they stay in the cache


def view_at(address: int | None, count: int, dtype: str) -> np.ndarray:
    """View `count` elements at an address as a flat array, which does not own them."""
    kind = numpy_dtype(dtype)
    if not count:  # then there may be no address either
        return np.zeros(0, kind)
    raw: Any = (ctypes.c_char * (count * kind.itemsize)).from_address(address or 0)
    return np.frombuffer(raw, kind)


def _combine(function: np.ufunc, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    if out.dtype != BFLOAT16:
        function(x, y, out=out)
        return
    # A bfloat16 is the upper half of a float32: widen, compute, and round to nearest.
    x, y, out = (bits.view(np.uint16) for bits in (x, y, out))
    for first in range(0, out.size, _PIECE):
        piece = slice(first, first + _PIECE)
        wide = _widen(x[piece])
        function(wide, _widen(y[piece]), out=wide)
        bits = wide.view(np.uint32)
        # Half of the last place that is kept; a tie goes up where that place is odd.
        bits += (bits >> np.uint32(16)) % np.uint32(2) + np.uint32(0x7FFF)
        out[piece] = bits >> 16


def _widen(bits: np.ndarray) -> np.ndarray:
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


# Of two flat arrays with one dtype: `COMBINE["sum"](x, y, out=z)`.
COMBINE: dict[str, Callable[..., None]] = {
    "sum": partial(_combine, np.add),
    "max": partial(_combine, np.maximum),
}


# -- gradients that are ready -----------------------------------------------------


class Reporter:
    """Pass on which gradients are ready, and in the end those that no pass reached."""

    def __init__(self, count: int, ready: Callable[[int], None]) -> None:
        self._ready = ready
        self._unreported = set(range(count))

    def report(self, i: int, *_: object) -> None:
        """Report parameter i (hooks pass more, which is not needed)."""
        self._unreported.discard(i)
        self._ready(i)

    def report_rest(self) -> None:
        """Report the parameters that were never reported, the last one first."""
        for i in sorted(self._unreported, reverse=True):
            self.report(i)
