"""The frameworks behind one contract (see `protocol.py`): a backend is a module.

Generic code starts with `B = backend_of(x)`, which imports nothing. Only the edges
(command line, first cell of a chapter) call `get_backend(name)`. Below are the names of
dtypes and devices, which all backends share.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from ..checks import check_choice
from ..errors import BackendNotInstalled, DeviceUnavailable, InvalidInput
from .protocol import Backend, Tensor

# name -> (its module, start of its tensors' module names, what to install)
BACKENDS = {
    "torch": (f"{__package__}.pytorch", "torch", "torch"),
    "mxnet": (f"{__package__}.mxnet", "mxnet", "'mxnet==1.9.1' 'numpy<1.24'"),
    "paddle": (f"{__package__}.paddle", "paddle", "paddlepaddle"),
    "numpy": (f"{__package__}.numpy", f"{__package__}.autograd", "numpy"),
}


# Framework -> another, after which it must not be loaded: the process would crash.
_NEVER_AFTER = {"mxnet": "tensorflow"}
# Frameworks with tracked devices (see `tracking.py`), and the stack that ends it.
tracked_frameworks: dict[str, ExitStack] = {}
_ALIASES = {"pytorch": "torch", "paddlepaddle": "paddle"}


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends: the frameworks, then `numpy`."""
    return tuple(BACKENDS)


def framework_names() -> tuple[str, ...]:
    """Return the names of the framework backends, in the order of the book's tabs."""
    return backend_names()[:3]


def backend_name(name: str | None = None) -> str:
    """Return the name of the requested backend, without importing it.

    Raises `InvalidInput` for an unknown one.
    """
    chosen = name if name is not None else os.environ.get("D2LMULTI_BACKEND") or "torch"
    if isinstance(chosen, str):
        chosen = _ALIASES.get(chosen, chosen)
    hint = "set D2LMULTI_BACKEND or pass one of these names"
    return check_choice("backend", chosen, BACKENDS, hint)


def get_backend(name: str | None = None) -> Backend:
    """Import and return the backend module called `name`.

    Without a name: the environment variable D2LMULTI_BACKEND, else `torch`; there is no
    fallback. Raises `InvalidInput` for an unknown name, `BackendNotInstalled` (with the
    install command) for a framework that this Python does not have, `InvalidInput` for
    one that would crash the process because of another that is loaded already.
    """
    key = backend_name(name)
    earlier = _NEVER_AFTER.get(key)
    if earlier in sys.modules and key not in sys.modules:
        raise InvalidInput(
            f"expected {key} to be loaded before {earlier}, because it crashes when it "
            f"is loaded after; restart Python and call get_backend({key!r}) before "
            f"`import {earlier}`"
        )
    module, _, package = BACKENDS[key]
    try:
        return importlib.import_module(module)
    except Exception as error:  # for example, MXNet with NumPy 2: AttributeError
        raise BackendNotInstalled(
            f"expected the framework behind the backend {key!r}, but this Python "
            f"cannot import it ({type(error).__name__}: {error}); install it with "
            f"`pip install {package}` (README, 'What works where', says which versions "
            "exist) or choose another backend, by its name or with D2LMULTI_BACKEND: "
            "`numpy` needs no framework"
        ) from error


def register_backend(name: str, module: ModuleType) -> None:
    """Register a module as a backend, which owns the tensors of its class `Tensor`.

    It needs only those functions of `protocol.py` that your code calls. Raises
    `InvalidInput` for another backend's name and for a module without that class.
    """
    if name in BACKENDS and BACKENDS[name][0] != module.__name__:
        raise InvalidInput(
            f"expected a name that no backend has, got {name!r}; choose another"
        )
    tensor = getattr(module, "Tensor", None)
    if not isinstance(tensor, type):
        raise InvalidInput(
            f"expected a module with a class Tensor, got {module.__name__} without; "
            "backend_of(x) knows the owner of x by its class"
        )
    BACKENDS[name] = (module.__name__, tensor.__module__, module.__name__)
    owner_of.cache_clear()


# -- the owner and the size of a tensor ----------------------------------------------


def backend_of(x: Any) -> Backend:
    """Return the backend that owns the tensor `x`, by its type alone.

    Raises `InvalidInput` when `x` is no tensor of any backend.
    """
    return owner_of(type(x))  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def owner_of(kind: type) -> Backend:
    """Return the backend that owns tensors of a type; nothing new is imported."""
    for base in kind.__mro__:
        for module, prefix, _ in BACKENDS.values():
            if f"{base.__module__}.".startswith(f"{prefix}."):
                backend = sys.modules.get(module) or importlib.import_module(module)
                if issubclass(kind, backend.Tensor):  # no layer, device or dtype
                    return backend
    raise InvalidInput(
        f"expected a tensor of {', '.join(BACKENDS)}, got {kind.__module__}."
        f"{kind.__name__}; make one with get_backend(name).array(values, device)"
    )


def element_count(x: Tensor) -> int:
    """Return the number of elements of `x` (a scalar has one)."""
    if not hasattr(x, "shape"):
        backend_of(x)  # raises an error: not a tensor
    return math.prod(map(int, x.shape))


def itemsize(x: Tensor) -> int:
    """Return the bytes of one element of `x`."""
    bits = backend_of(x).dtype_of(x).lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(bits or 8) // 8  # "bool" has no digits: one byte


def nbytes(x: Tensor) -> int:
    """Return the bytes of all elements of `x`."""
    return element_count(x) * itemsize(x)


# -- dtypes, by their NumPy names -------------------------------------------------

# A message between processes names a dtype by its index here.
NUMPY_DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")
DTYPES = (*NUMPY_DTYPES, "bfloat16")
BFLOAT16 = np.dtype("V2")  # NumPy has none: two bytes without a meaning


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype by which NumPy views the memory of a tensor of that dtype."""
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
    array = np.asarray(value, order="C")
    name = dtype_name(array.dtype, [name for name in held if name in NUMPY_DTYPES])
    return array.astype(name, copy=False)


# -- devices ----------------------------------------------------------------------

_DEVICE = re.compile(r"(?:cpu(?::0)?|(gpu|cuda|sim):([0-9]+))")


def parse_device(device: object) -> tuple[str, int]:
    """Split a device (anything whose `str` is a device name) into kind and index.

    `cuda:1` is read as `gpu:1`. Raises `InvalidInput` for anything else.
    """
    kind, index = getattr(device, "kind", None), getattr(device, "index", None)
    if kind in ("gpu", "sim") and type(index) is int:
        return kind, index  # a Device: no need to parse its name
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
    if kind == "sim" and framework in tracked_frameworks and gpu_count < 2:
        return kind, index
    if kind == "sim":
        return ("gpu", index % gpu_count) if gpu_count else ("cpu", 0)
    if kind == "gpu" and index >= gpu_count:
        raise DeviceUnavailable(
            f"expected a GPU that {framework} can use, got gpu:{index} where it sees "
            f"{gpu_count}; use devices(n), which simulates the missing ones, or 'cpu'"
        )
    return kind, index
