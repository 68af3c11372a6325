"""All settings of a run in words, which its processes compare before the first step.

Ranks that differ in learning rate, seed or optimizer would train on: their losses would
agree, and their weights would not. Arrays become digests of their bytes, functions
digests of their code, closure, defaults and bound object. Chapter: *many_machines*.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from types import CellType, CodeType, ModuleType
from typing import Any

import numpy as np

from ..backends.protocol import Backend, backend_of
from ..comm.group import Group
from ..data.datasets import Dataset
from ..errors import InvalidInput, by_call
from ..models.model import Model, run_layers
from .checkpoint import Checkpoint
from .metrics import allgather_values
from .rate import Schedule, rate_at

_LONG = 60  # what an error shows of a setting


def check_settings(group: Group, settings: Mapping[str, Any]) -> None:
    """Refuse to train where processes have different settings; name all of them.

    Raises `InvalidInput`, in every process.
    """
    mine = {name: in_words(value) for name, value in settings.items()}
    gathered: list[dict[str, str]] = allgather_values(group, mine)
    differ = []
    for name in dict.fromkeys(name for theirs in gathered for name in theirs):
        of = {rank: theirs.get(name, "nothing") for rank, theirs in enumerate(gathered)}
        if len(set(of.values())) > 1:
            differ.append(f"{name} {by_call(of)}")
    if differ:
        raise InvalidInput(
            f"expected the same settings in every process, got {'; '.join(differ)}; "
            "start all with the same program, options, data and checkpoint"
        )


def about_machine(B: Backend) -> dict[str, str]:
    """Give the releases on which the bits of a run depend; not how they were built."""
    module = sys.modules[B.name]
    release = str(module.__version__).partition("+")[0]
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "backend": f"{B.name} {release}"}


def about_data(data: Dataset) -> str:
    """Name a data set, with a digest of all its examples."""
    arrays = (data.train_X, data.train_y, data.test_X, data.test_y)
    return f"{data.name} ({digest(arrays)}, {len(data.train_X)} examples)"


def fingerprint(
    B: Backend, data: Dataset, model: Model, start: Sequence[np.ndarray],
    rate: float | Schedule, steps: int,
) -> dict[str, Any]:  # fmt: skip
    """Return what a run that goes on must share with the one that was saved.

    The model is told by what it computes, so that a checkpoint can go on under another
    framework or Python: the norm of the logits of the first example, from the weights
    at the `start`, by each of its functions.
    """
    X = B.array(data.train_X[:1])
    functions = [model.forward_eval, *([] if model.together else [model.forward])]
    if model.layers:
        functions.append(lambda B, params, X: run_layers(B, model.layers, params, X))
    with B.pause():
        logits = [f(B, [B.array(p) for p in start], X) for f in functions]
    norms = [float(np.linalg.norm(B.numpy(out))) for out in logits]
    return {
        "data": about_data(data),
        "rates": rates_in_words(rate, steps),
        "logits": " ".join(f"{norm:.9g}" for norm in norms),
    }


def rates_in_words(rate: float | Schedule, steps: int) -> str:
    """List the learning rates of a schedule at steps 0, 1, 2, 4, ... of a run."""
    if not isinstance(rate, Schedule):
        return ""
    sampled = [0, *(2**i for i in range(steps.bit_length()) if 2**i < steps)]
    return " ".join(f"{rate_at(rate, step):.9g}" for step in sampled)


def about_model(model: Model, params: Iterable[np.ndarray]) -> str:
    """Name a model, with a digest of its functions and of its parameters' shapes."""
    parts = in_words(tuple(model)), str([p.shape for p in params])
    return f"{model.name} ({_digest(part.encode() for part in parts)})"


def about_start(at: Checkpoint) -> str:
    """Say where the run begins: position, and a digest of all numbers."""
    arrays = [*at.params, *at.state, *(x for replica in at.buffers for x in replica)]
    return f"after epoch {at.epoch}, step {at.step}, with weights {digest(arrays)}"


def digest(arrays: Iterable[np.ndarray]) -> str:
    """Shorten arrays to some letters: their dtypes, shapes and bytes, in this order."""
    parts: list[Any] = []
    for x in arrays:
        parts += [f"{x.dtype} {x.shape}".encode(), np.ascontiguousarray(x).data]
    return _digest(parts)


def in_words(value: Any) -> str:
    """Describe a setting so that equal ones are described alike in every process.

    A function is described by its code and by what it has bound: closure, defaults and
    the object that it is a method of; an object by its class and attributes. Raises
    `InvalidInput` for what shows nothing but its address, which no process shares.
    """
    words = _in_words(value, [])
    if " at 0x" in words:
        raise InvalidInput(
            f"expected a setting that processes can compare, got {words:.200}; its "
            "`repr` shows an address only: pass a function, or an object of a class "
            "written in Python"
        )
    return words


def _in_words(value: Any, inside: list[Any]) -> str:
    """Describe a value that lies inside others, each of which is described once."""
    if any(value is outer for outer in inside):
        return "itself"  # a function that calls itself, say
    inside = [*inside, value]

    def many(values: Iterable[Any]) -> str:
        return ", ".join(_in_words(one, inside) for one in values)

    if isinstance(value, partial):
        return f"partial({many([value.func, *value.args, *value.keywords.items()])})"
    if isinstance(value, (list, tuple)):
        words = many(value)
        long = len(words) > _LONG
        return f"list {_digest([words.encode()])}" if long else f"[{words}]"
    if isinstance(value, Mapping):
        return f"{{{many(value.items())}}}"
    if isinstance(value, (set, frozenset)):  # it has no order
        return f"{{{', '.join(sorted(_in_words(one, inside) for one in value))}}}"
    if isinstance(value, (type, ModuleType)):
        return str(value.__name__)
    if isinstance(getattr(value, "__code__", None), CodeType):
        bound = many(_bound_by(value)).encode()
        return f"{value.__qualname__} ({_digest([*_of_code(value.__code__), bound])})"
    if isinstance(value, np.ndarray):
        return f"array {digest([value])}"
    with suppress(InvalidInput):  # no tensor of any backend
        return f"tensor {digest([backend_of(value).numpy(value)])}"
    if hasattr(value, "__dict__"):
        attributes = (f"{k}={_in_words(v, inside)}" for k, v in vars(value).items())
        return f"{type(value).__qualname__}({', '.join(attributes)})"
    return value if isinstance(value, str) else repr(value)


def _bound_by(function: Any) -> list[Any]:
    """Return what a function takes along: its object, its defaults, its closure."""
    cells = [cell for cell in function.__closure__ or () if cell != CellType()]
    return [
        getattr(function, "__self__", None),
        function.__defaults__,
        function.__kwdefaults__,
        [cell.cell_contents for cell in cells],
    ]


def _of_code(code: CodeType) -> Iterable[bytes]:
    """Give what a function does, without where it is written or what it remembers."""
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
        elif isinstance(constant, frozenset):  # it has no order
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()


def _digest(parts: Iterable[Any]) -> str:
    found = blake2b(digest_size=6)
    for part in parts:
        found.update(part)
        found.update(b"|")
    return found.hexdigest()
