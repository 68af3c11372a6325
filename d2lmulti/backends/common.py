"""What the backends share: names of devices, and values as NumPy arrays."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..errors import DeviceUnavailable, InvalidInput
from . import tracking
from .dtypes import NUMPY_DTYPES, dtype_name

_DEVICE = re.compile(r"(?:cpu(?::0)?|(gpu|cuda|sim):([0-9]+))")


def parse_device(device: object) -> tuple[str, int]:
    """Split a device (anything whose `str` is a device name) into kind and index.

    `cuda:1` is read as `gpu:1`. Raises `InvalidInput` for anything else.
    """
    kind, index = getattr(device, "kind", None), getattr(device, "index", None)
    if kind in ("gpu", "sim") and type(index) is int and index >= 0:
        return kind, index  # one of ours, which need not be read as text
    match = _DEVICE.fullmatch(str(device))
    if match is None or isinstance(device, (int, float)):
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

    Simulated devices are dealt out over the GPUs in turn, or all lie on the CPU. They
    keep their number where tensors know it (see `tracking.py`) and no two GPUs are.
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


def numeric(value: np.ndarray | Sequence[Any], held: Collection[str]) -> np.ndarray:
    """View values as plain NumPy: row-major, native bytes, a dtype the backend holds.

    PyTorch takes no negative strides and no foreign byte order. Raises `InvalidInput`
    for ragged lists, strings and objects.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy 1.23 only warns of a ragged list
            found = np.asarray(value, order="C")
    except (ValueError, Warning) as error:
        raise InvalidInput(
            f"expected rows of equal length, got a {type(value).__name__} of which "
            f"NumPy says: {error}; pad the rows or make one tensor of each"
        ) from error
    name = dtype_name(found.dtype, [name for name in held if name in NUMPY_DTYPES])
    return found.astype(name, copy=False)
