"""The frameworks behind one contract (see `protocol.py`): a backend is a module.

Generic code starts with `B = backend_of(x)`, which imports nothing. Only the edges
(command line, first cell of a chapter) call `get_backend(name)`.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from ..checks import check_choice
from ..errors import BackendNotInstalled, InvalidInput
from .protocol import BACKENDS, Backend, backend_of, owner_of

# A framework that crashes the process when it is loaded after another.
_NEVER_AFTER = {"mxnet": "tensorflow"}
_ALIASES = {"pytorch": "torch", "paddlepaddle": "paddle"}
__all__ = [
    "backend_name",
    "backend_names",
    "backend_of",
    "framework_names",
    "get_backend",
    "register_backend",
]


def backend_names() -> tuple[str, ...]:
    """Names of all backends: the frameworks, then `numpy`, which is always there."""
    return tuple(BACKENDS)


def framework_names() -> tuple[str, ...]:
    """Names of the three framework backends, in the order of the book's tabs."""
    return backend_names()[:3]


def backend_name(name: str | None = None) -> str:
    """Return the name of the backend that is asked for, without importing it.

    Raises `InvalidInput` for an unknown one.
    """
    asked = name if name is not None else os.environ.get("D2LMULTI_BACKEND") or "torch"
    if isinstance(asked, str):
        asked = _ALIASES.get(asked, asked)
    hint = "set D2LMULTI_BACKEND or pass one of these names"
    return check_choice("backend", asked, BACKENDS, hint)


def get_backend(name: str | None = None) -> Backend:
    """Import and return the backend module called `name`.

    Without a name: the environment variable D2LMULTI_BACKEND, else `torch`; never
    another one in its place.
    Raises `InvalidInput` for an unknown name, `BackendNotInstalled` (with the install
    command) for a framework that this Python does not have, `InvalidInput` for one
    that would crash the process because of what is loaded already.
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
    except Exception as error:  # MXNet on NumPy 2 ends in an AttributeError, for one
        raise BackendNotInstalled(
            f"expected the framework behind the backend {key!r}, but this Python "
            f"cannot import it ({type(error).__name__}: {error}); install it with "
            f"`pip install {package}` (README, 'What works where', says which versions "
            "exist) or choose another backend, by its name or with D2LMULTI_BACKEND: "
            "`numpy` needs no framework"
        ) from error


def register_backend(name: str, module: ModuleType) -> None:
    """Make a module of one's own a backend, which owns the tensors of its `Tensor`.

    It holds those verbs of `protocol.py` that what it runs will call. Raises
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
