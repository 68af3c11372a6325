"""Describe the settings of a run, so that processes and resumed runs can compare them.

Ranks that differ in learning rate, seed or optimizer would train on: their losses would
agree, and their weights would not. Chapter: *many_machines*.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ..backends import backend_of
from ..backends.protocol import Backend
from ..comm.group import Group
from ..data import Dataset
from ..errors import InvalidInput, by_call
from ..models.networks import Model, run_layers
from .history import allgather_values
from .rate import Schedule, rate_at


def check_settings(group: Group, settings: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` in every process if their settings differ; name them."""
    local = {name: shorten(describe(value)) for name, value in settings.items()}
    gathered: list[dict[str, str]] = allgather_values(group, local)
    differ = []
    for name in dict.fromkeys(name for words in gathered for name in words):
        by_rank = {i: words.get(name, "nothing") for i, words in enumerate(gathered)}
        if len(set(by_rank.values())) > 1:
            differ.append(f"{name} {by_call(by_rank)}")
    if differ:
        raise InvalidInput(
            f"expected the same settings in every process, got {'; '.join(differ)}; "
            "start all with the same program, options, data and checkpoint"
        )


def describe(value: Any) -> str:
    """Return text that is the same in two processes only if their values are the same.

    A function is described by its name, its code, and what it has bound: closure,
    defaults, and the object of a method; an object by its class and attributes. Raises
    `InvalidInput` for what can only be described by its address, which no two processes
    share.
    """
    try:
        words = _describe(value)
    except RecursionError:
        words = "a value that contains itself, at 0x"
    if " at 0x" in words:
        raise InvalidInput(
            f"expected a setting that processes can compare, got {words:.200}; pass a "
            "function, or an object of a class written in Python"
        )
    return words


def _describe(value: Any) -> str:
    if isinstance(value, partial):
        return f"partial{_describe([value.func, value.args, value.keywords])}"
    if isinstance(value, MethodType):
        return f"method{_describe([value.__func__, value.__self__])}"
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        bound = [value.__defaults__, value.__kwdefaults__, cells]
        name = f"{value.__module__}.{value.__qualname__}"
        return f"{name}({_describe(value.__code__)}, {_describe(bound)})"
    if isinstance(value, CodeType):
        return _describe([value.co_code.hex(), value.co_names, value.co_consts])
    if isinstance(value, (type, ModuleType)):
        return value.__name__
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe, value))}]"
    if isinstance(value, (set, frozenset)):  # without an order
        return f"{{{', '.join(sorted(map(_describe, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(_describe, value.items()))}}}"
    with suppress(InvalidInput):  # not a tensor of any backend
        value = backend_of(value).numpy(value)
    if isinstance(value, np.ndarray):
        content = blake2b(np.ascontiguousarray(value).data, digest_size=6).hexdigest()
        return f"{value.dtype} array {value.shape} {content}"
    if hasattr(value, "__dict__"):
        attributes = (f"{k}={_describe(v)}" for k, v in vars(value).items())
        return f"{type(value).__qualname__}({', '.join(attributes)})"
    return value if isinstance(value, str) else repr(value)


def shorten(words: str) -> str:
    """Replace all but the beginning of a long description by a digest of the whole."""
    digest = blake2b(words.encode(), digest_size=6).hexdigest()
    return words if len(words) <= 60 else f"{words[:40]}... ({digest})"


def about_machine(B: Backend) -> dict[str, str]:
    """Return the releases on which the bits of a run depend, without build numbers."""
    release = str(sys.modules[B.name].__version__).partition("+")[0]
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "backend": f"{B.name} {release}"}


def rates_of(rate: float | Schedule, steps: int) -> list[float]:
    """Return the learning rates of a schedule at steps 0, 1, 2, 4, ... of a run."""
    if not isinstance(rate, Schedule):
        return []
    sampled = [0, *(2**i for i in range(steps.bit_length()) if 2**i < steps)]
    return [float(rate_at(rate, step)) for step in sampled]


def fingerprint(
    B: Backend,
    data: Dataset,
    model: Model,
    start: Sequence[np.ndarray],
    rate: float | Schedule,
    steps: int,
) -> dict[str, Any]:
    """Return what a resumed run must share with the one that was saved.

    The model is identified by what it computes, so that a run can resume under another
    framework or Python: the norm of the logits of the first example, from the weights
    at the `start`, by each of its functions.
    """
    X = B.array(data.train_X[:1])
    functions = [model.forward_eval, *([] if model.together else [model.forward])]
    if model.layers:
        functions.append(lambda B, params, X: run_layers(B, model.layers, params, X))
    with B.pause():
        logits = [f(B, [B.array(p) for p in start], X) for f in functions]
    return {
        "data": shorten(describe(data)),
        "rates": rates_of(rate, steps),
        "logits": [float(np.linalg.norm(B.numpy(out))) for out in logits],
    }
