"""All settings of a run in words, which its processes compare before the first step.

Two ranks with another rate, seed or optimizer each would train on, their losses would
agree, and their weights would not. Arrays and functions become digests of their bytes.
Chapter: *many_machines*.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from hashlib import blake2b
from types import CodeType
from typing import Any

import numpy as np

from ..backends.protocol import Backend
from ..comm.agreement import by_call
from ..comm.group import Group
from ..data.datasets import Dataset
from ..errors import InvalidInput
from ..models.model import Model
from .checkpoint import Checkpoint
from .metrics import allgather_values

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

    A function is described by its code, an object without a `repr` of its own by its
    class and attributes: an address would differ.
    """
    if isinstance(value, partial):
        parts = [value.func, *value.args, *value.keywords.items()]
        return f"partial({', '.join(map(in_words, parts))})"
    if isinstance(value, (list, tuple)):
        words = ", ".join(map(in_words, value))
        long = len(words) > _LONG
        return f"list {_digest([words.encode()])}" if long else f"[{words}]"
    if isinstance(value, np.ndarray):
        return f"array {digest([value])}"
    if isinstance(code := getattr(value, "__code__", None), CodeType):
        return f"{value.__qualname__} ({_digest(_of_code(code))})"
    described: Any = type(value).__repr__
    if described is object.__repr__:
        name = type(value).__qualname__
        held = getattr(value, "__dict__", {})
        return f"{name}({', '.join(f'{k}={in_words(v)}' for k, v in held.items())})"
    return str(value)


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
