"""Lists of tensors, one for each device: parameters, states, gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..checks import check_list
from ..errors import InvalidInput
from . import backend_of
from .protocol import Backend, Tensor


def check_tensors(name: str, tensors: Any, least: int = 1, cure: str = "") -> Backend:
    """Refuse all but a list of at least so many tensors; return their backend."""
    check_list(name, tensors, "tensors", least, cure)
    return one_backend(name, tensors)


def check_lists(
    name: str, lists: Any, owners: int, per: str = "device", least: int = 1,
    cure: str = "",
) -> Sequence[Sequence[Tensor]]:  # fmt: skip
    """Refuse all but one list of tensors for each owner, each tensor in one place.

    A list given to two replicas would be updated twice; on PyTorch, without a word.
    """
    then = f"; {cure}" if cure else ""
    check_list(name, lists, f"lists of tensors, one a {per}", cure=cure)
    if len(lists) != owners:
        raise InvalidInput(
            f"expected one list of tensors per {per} as {name}, got {len(lists)} for "
            f"{owners} {per}s{then}"
        )
    for i, mine in enumerate(lists):
        check_list(f"{name}[{i}]", mine, "tensors", least, cure)
    every = [x for mine in lists for x in mine]
    if every:
        one_backend(name, every)
    if len({id(x) for x in every}) < len(every):
        raise InvalidInput(
            f"expected tensors of its own for every {per} as {name}, got one tensor "
            f"twice{then}"
        )
    return lists


def one_backend(name: str, tensors: Iterable[Any]) -> Backend:
    """Return the backend of all these tensors; refuse tensors of several."""
    found = [backend_of(x) for x in {type(x): x for x in tensors}.values()]
    if any(B is not found[0] for B in found):
        raise InvalidInput(
            f"expected tensors of one framework as {name}, got some of "
            f"{' and '.join(sorted(B.name for B in found))}; convert with "
            "B.array(other.numpy(x))"
        )
    return found[0]
