"""Which tokens each rank holds, and checks of the tensors that hold them.

Under a causal mask the first tokens attend to few keys and the last ones to many, so
the order in which tokens are distributed decides how long each rank computes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...backends import backend_of
from ...backends.protocol import Backend, Tensor
from ...checks import (
    MAX_RANKS,
    check_choice,
    check_count,
    check_flag,
    check_list,
    check_rows,
)
from ...comm.group import Group, group_for
from ...errors import InvalidInput, plural
from ...plans.rounds import MOST_ELEMENTS, even_bounds

ORDERS = ("contiguous", "striped", "zigzag")


def token_positions(length: int, ranks: int, order: str = "zigzag") -> list[np.ndarray]:
    """Distribute `length` tokens: return the ascending positions of each rank's tokens.

    `contiguous` gives a rank neighbors; `striped` every `ranks`-th token (Brandon et
    al., 2023); `zigzag` cuts twice as many parts as ranks, and rank r gets part r from
    the front and part r from the back. Sizes differ by at most two tokens. Raises
    `InvalidInput` for another order, and for fewer tokens than ranks.

    >>> [at.tolist() for at in token_positions(8, 2)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    check_choice("order", order, ORDERS)
    ranks = check_count("ranks", ranks, max=MAX_RANKS)
    length = check_count("length", length, max=MOST_ELEMENTS)
    if length < ranks:
        raise InvalidInput(
            f"cannot distribute {plural(length, 'token')} over {ranks} ranks; use a "
            f"sequence of at least {ranks} tokens, or fewer ranks"
        )
    if order == "striped":
        return [np.arange(rank, length, ranks) for rank in range(ranks)]
    if order == "contiguous":
        return [np.arange(*part) for part in even_bounds(length, ranks)]
    parts = [np.arange(*part) for part in even_bounds(length, 2 * ranks)]
    return [np.concatenate([parts[r], parts[-1 - r]]) for r in range(ranks)]


class Tokens(NamedTuple):
    """The tokens of one call of attention."""

    B: Backend
    group: Group
    at: list[np.ndarray]  # of every rank: the positions of its tokens
    heads: int
    size: int  # of a head
    causal: bool

    def call(self, name: str) -> str:
        """Name the call; ranks that cut the tokens differently then get an error."""
        cut = zlib.crc32(repr([part.tolist() for part in self.at]).encode())
        kind = "causal " if self.causal else ""
        return f"{kind}{name} of {sum(map(len, self.at))} tokens (cut {cut:08x})"

    def elements(self) -> np.ndarray:
        """Count the elements of each rank's queries."""
        return np.array([len(part) for part in self.at]) * (self.heads * self.size)


def check_tokens(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    positions: Sequence[Any],
    causal: bool,
    group: Group | None,
) -> Tokens:
    """Raise `InvalidInput` unless queries, keys, and values fit `positions`."""
    named = {"queries": queries, "keys": keys, "values": values}
    for name, xs in named.items():
        check_list(name, xs, "tensors, one per device")
        check_rows(xs)
    B = backend_of(queries[0])
    group = group_for(len(queries), group)
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
    at = _check_positions(positions, group.size)
    tokens = Tokens(B, group, at, *shape, check_flag("causal", causal))
    for name, xs in named.items():
        check_like(name, xs, tokens, queries[0])
    return tokens


def check_like(name: str, xs: Sequence[Tensor], tokens: Tokens, like: Tensor) -> None:
    """Raise `InvalidInput` unless each tensor has one row for each token of its rank.

    The other dimensions, and the dtype, must be those of `like`.
    """
    B, ranks = tokens.B, tokens.group.local_ranks
    if len(check_list(name, xs, "tensors, one per device")) != len(ranks):
        raise InvalidInput(
            f"expected one entry for each of this process's {len(ranks)} ranks as "
            f"{name}, got {len(xs)}; pass a list in rank order"
        )
    for rank, x in zip(ranks, xs, strict=True):
        count = len(tokens.at[rank])
        wanted = (count, *like.shape[1:]), B.dtype_of(like)
        given = tuple(x.shape), backend_of(x).dtype_of(x)
        if backend_of(x) is not B or given != wanted:
            raise InvalidInput(
                f"expected {name} of shape {wanted[0]} {wanted[1]} on rank {rank}, one "
                f"row for each of its {plural(count, 'position')}, got {given[0]} "
                f"{given[1]}; cut all of them by the same positions"
            )


def _check_positions(positions: Any, ranks: int) -> list[np.ndarray]:
    """Return the positions as arrays; each of 0, 1, ... must be in one of them."""
    at = [np.array(part) for part in check_list("positions", positions, "positions")]
    if len(at) != ranks:
        raise InvalidInput(
            f"expected the positions of each of the {ranks} ranks, got {len(at)}; use "
            "token_positions(length, ranks)"
        )
    every = np.concatenate(at)
    if every.dtype.kind != "i" or (np.sort(every) != np.arange(len(every))).any():
        raise InvalidInput(
            f"expected each position from 0 to {len(every) - 1} on one rank, once; use "
            "token_positions(length, ranks)"
        )
    return at
