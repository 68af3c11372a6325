"""Which tokens a rank holds, and what the parts of a sequence must look like.

Under a causal mask the first tokens have few keys to meet and the last ones many, so
the order in which tokens are dealt out decides who works how long.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...backends.protocol import Backend, Tensor, backend_of
from ...checks import (
    MAX_RANKS,
    check_choice,
    check_count,
    check_flag,
    check_list,
    check_rows,
)
from ...comm.group import Group, group_for
from ...errors import InvalidInput, several
from ...plans.rounds import MOST_ELEMENTS, even_bounds

ORDERS = ("contiguous", "striped", "zigzag")


def token_positions(length: int, ranks: int, order: str = "zigzag") -> list[np.ndarray]:
    """Deal `length` tokens out: for each rank the positions of its tokens, ascending.

    `contiguous` gives neighbours; `striped` every `ranks`-th token (Brandon et al.,
    2023); `zigzag` cuts twice as many parts as ranks and gives rank r part r from the
    front and part r from the back. Sizes differ by two tokens at most. Raises
    `InvalidInput` for another order, and for fewer tokens than ranks.

    >>> [at.tolist() for at in token_positions(8, 2)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    check_choice("order", order, ORDERS)
    ranks = check_count("ranks", ranks, max=MAX_RANKS)
    length = check_count("length", length, max=MOST_ELEMENTS)
    if length < ranks:
        raise InvalidInput(
            f"cannot share out {several(length, 'token')} over {ranks} ranks; use a "
            f"sequence of at least {ranks} tokens, or fewer ranks"
        )
    if order == "striped":
        return [np.arange(rank, length, ranks) for rank in range(ranks)]
    if order == "contiguous":
        return [np.arange(*part) for part in even_bounds(length, ranks)]
    parts = [np.arange(*part) for part in even_bounds(length, 2 * ranks)]
    return [np.concatenate([parts[r], parts[-1 - r]]) for r in range(ranks)]


class Tokens(NamedTuple):
    """What a call of attention over ranks is about."""

    B: Backend
    group: Group
    at: list[np.ndarray]  # of every rank: the positions of its tokens
    heads: int
    size: int
    causal: bool

    def call(self, name: str) -> str:
        """Words for this call; ranks that cut the tokens in other ways differ."""
        cut = zlib.crc32(repr([part.tolist() for part in self.at]).encode())
        kind = "causal " if self.causal else ""
        return f"{kind}{name} of {sum(map(len, self.at))} tokens (cut {cut:08x})"

    def numbers(self) -> np.ndarray:
        """Count the numbers in each rank's queries."""
        return np.array([len(part) for part in self.at]) * (self.heads * self.size)


def check_tokens(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    positions: Sequence[Any],
    causal: bool,
    group: Group | None,
) -> Tokens:
    """Refuse all but queries, keys and values of the tokens that `positions` names."""
    for name, xs in (("queries", queries), ("keys", keys), ("values", values)):
        check_list(name, xs, "tensors, one per device")
        check_rows(xs)
    B = backend_of(queries[0])
    group = group_for(len(queries), group)
    at = _check_positions(positions, group.size)
    shape = tuple(queries[0].shape[1:])
    if len(shape) != 2 or not np.prod(shape):
        raise InvalidInput(
            f"expected queries of shape (tokens, heads, size of a head), got "
            f"{tuple(queries[0].shape)}; reshape them"
        )
    if (dtype := B.dtype_of(queries[0])) not in ("float32", "float64"):
        raise InvalidInput(
            f"expected float32 or float64 as queries, got {dtype}; convert them"
        )
    for name, xs in (("queries", queries), ("keys", keys), ("values", values)):
        check_like(name, xs, [at[r] for r in group.local_ranks], queries[0], group)
    return Tokens(B, group, at, *shape, check_flag("causal", causal))


def check_like(
    name: str,
    xs: Sequence[Tensor],
    at: Sequence[np.ndarray],
    like: Tensor,
    group: Group,
) -> None:
    """Refuse tensors that are not one row for each of a rank's tokens, as `like`."""
    B = backend_of(like)
    if len(check_list(name, xs, "tensors, one per device")) != len(at):
        raise InvalidInput(
            f"expected one entry for each of this process's {len(at)} ranks as {name}, "
            f"got {len(xs)}; pass a list in rank order"
        )
    for rank, x, mine in zip(group.local_ranks, xs, at, strict=True):
        wanted = (len(mine), *like.shape[1:]), B.dtype_of(like)
        found = tuple(x.shape), backend_of(x).dtype_of(x)
        if backend_of(x) is not B or found != wanted:
            raise InvalidInput(
                f"expected {name} of shape {wanted[0]} {wanted[1]} on rank {rank}, one "
                f"row for each of its {several(len(mine), 'position')}, got {found[0]} "
                f"{found[1]}; cut all of them by the same positions"
            )


def _check_positions(positions: Any, ranks: int) -> list[np.ndarray]:
    """Give the positions back as arrays; each of 0, 1, ... must be in one of them."""
    if len(check_list("positions", positions, "positions, one list a rank")) != ranks:
        raise InvalidInput(
            f"expected the positions of each of the {ranks} ranks, got {len(positions)}"
            "; use token_positions(length, ranks)"
        )
    at = []
    for rank, part in enumerate(positions):
        if isinstance(part, np.ndarray):
            part = part.tolist()
        check_list(f"positions of rank {rank}", part, "whole numbers")
        at.append(np.array([check_count("position", p, min=0) for p in part]))
    every = np.sort(np.concatenate(at))
    if (every != np.arange(len(every))).any():
        raise InvalidInput(
            f"expected each position from 0 to {len(every) - 1} on one rank, once; use "
            "token_positions(length, ranks)"
        )
    return at
