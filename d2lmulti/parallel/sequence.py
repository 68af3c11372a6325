"""Context parallelism of attention: each rank holds some of the tokens, of all heads.

In *ring attention*, a rank keeps its queries and works on one block of keys and values
at a time, which it then sends to the next rank. In the backward pass, the blocks go
around once more, together with their gradients, to which each rank adds its part.
Source: Liu et al. (2023). Explained in the chapter *long_sequences*.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends import backend_of, element_count
from ..backends.protocol import Backend, Tensor
from ..checks import (
    MAX_RANKS,
    check_choice,
    check_count,
    check_list,
    invalid,
    spec_of,
)
from ..comm.group import Group, exchange, group_for
from ..errors import InvalidInput, plural
from ..events import notify
from ..plans.rounds import MAX_ELEMENTS, even_bounds, make_round
from .online_softmax import AttentionOutput, BlockAttention

ORDERS = ("contiguous", "striped", "zigzag")


def token_positions(length: int, ranks: int, order: str = "zigzag") -> list[np.ndarray]:
    """Distribute `length` tokens: return the ascending positions of each rank's tokens.

    `contiguous` gives a rank adjacent tokens; `striped`, every `ranks`-th (Brandon et
    al., 2023); `zigzag` cuts twice as many parts as ranks, and rank r gets part r from
    the front and part r from the back. Sizes differ by at most two tokens. Raises
    `InvalidInput` for another order, and for fewer tokens than ranks.

    >>> [at.tolist() for at in token_positions(8, 2)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    check_choice("order", order, ORDERS)
    ranks = check_count("ranks", ranks, max=MAX_RANKS)
    length = check_count("length", length, max=MAX_ELEMENTS)
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
        """Name the call, so that ranks that cut the tokens differently get an error."""
        checksum = zlib.crc32(repr([part.tolist() for part in self.at]).encode())
        kind = "causal " if self.causal else ""
        return f"{kind}{name} of {sum(map(len, self.at))} tokens (cut {checksum:08x})"

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
    """Raise `InvalidInput` unless queries, keys, and values fit `positions`.

    Each of the positions 0, 1, ... must be on one rank.
    """
    check_list("queries", queries, "tensors, one per device")
    B, group = backend_of(queries[0]), group_for(len(queries), group)
    if (dtype := B.dtype_of(queries[0])) not in ("float32", "float64"):
        raise invalid("queries of float32 or float64", dtype, "convert them")
    by_rank = [np.array(part) for part in positions]
    flat = np.concatenate(by_rank)
    if len(by_rank) != group.size or (np.sort(flat) != np.arange(len(flat))).any():
        raise InvalidInput(
            f"expected each position from 0 to {len(flat) - 1} on one of "
            f"{group.size} ranks, once; use token_positions(length, ranks)"
        )
    _, heads, size = map(int, queries[0].shape)
    tokens = Tokens(B, group, by_rank, heads, size, causal)
    for name, xs in {"queries": queries, "keys": keys, "values": values}.items():
        check_like(name, xs, tokens, dtype)
    return tokens


def check_like(name: str, xs: Sequence[Tensor], tokens: Tokens, dtype: str) -> None:
    """Raise `InvalidInput` unless each tensor has a row for each token of its rank."""
    ranks = tokens.group.local_ranks
    for rank, x in zip(ranks, check_list(name, xs, "tensors"), strict=True):
        shape = len(tokens.at[rank]), tokens.heads, tokens.size
        if (tuple(x.shape), backend_of(x).dtype_of(x)) != (shape, dtype):
            raise invalid(
                f"{name} of shape {shape} {dtype} on rank {rank}, one row for each "
                "of its tokens", spec_of(x), "cut all of them by the same positions",
            )  # fmt: skip


def ring_attention(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    positions: Sequence[Any],
    causal: bool = True,
    group: Group | None = None,
) -> AttentionOutput:
    """Mix values by softmax(Q K^T / sqrt(size)) over the tokens of all ranks.

    Each list has one tensor (tokens, heads, size) per local rank; `positions` are those
    of *every* rank's tokens (see `token_positions`). With `causal` a query sees its own
    position and earlier ones. Each of n ranks sends n - 1 blocks of keys and values,
    and in the backward pass again as many, and as many blocks of gradients. Records no
    graph: call `AttentionOutput.backward`. Raises `InvalidInput` for tensors that do
    not fit `positions`, and for a dtype other than float32 and float64.
    """
    tokens = check_tokens(queries, keys, values, positions, causal, group)
    B, ranks, n = tokens.B, tokens.group.local_ranks, tokens.group.size

    def blocks_at(step: int, blocks: Sequence[Tensor]) -> list[tuple[Any, ...]]:
        """Return the keys, values, and positions that each rank has at a step."""
        rank_blocks = []
        for rank, block in zip(ranks, blocks, strict=True):
            at = tokens.at[(rank - step) % n]
            rank_blocks.append((block[: len(at)], block[len(at) :], at))
        return rank_blocks

    with B.pause():
        attention = [
            BlockAttention(B, Q, tokens.at[rank], tokens.causal)
            for Q, rank in zip(queries, ranks, strict=True)
        ]
        blocks = [B.concat([K, V]) for K, V in zip(keys, values, strict=True)]
        for step in range(n):
            if step:
                blocks = _pass_on(tokens, blocks, step - 1)
            for local, block in zip(attention, blocks_at(step, blocks), strict=True):
                local.update(*block)
        outputs = [local.finish() for local in attention]
    notify("on_mark", "ring attention forward")

    def backward(grads: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        check_like("gradients", grads, tokens, B.dtype_of(queries[0]))
        with B.pause():
            for local, grad in zip(attention, grads, strict=True):
                local.start_backward(grad)
            blocks = [B.concat([K, V]) for K, V in zip(keys, values, strict=True)]
            own_grads: list[Tensor] = []  # of a rank's own block
            moving: list[Tensor] = []  # of the block that the rank has now
            for step in range(n):
                if step:
                    blocks = _pass_on(tokens, blocks, step - 1)
                partial = [
                    B.concat([*local.backward_block(*block)])
                    for local, block in zip(
                        attention, blocks_at(step, blocks), strict=True
                    )
                ]
                if step == 0:
                    own_grads = partial
                elif step == 1:
                    moving = partial
                else:
                    moving = _add(_pass_on(tokens, moving, step - 1), partial)
            if n > 1:
                own_grads = _add(own_grads, _pass_on(tokens, moving, n - 1))
            dQs = [local.finish_backward() for local in attention]
            dKs, dVs = (
                [
                    B.copy_to(pair[i], B.device_of(pair[i]))
                    for pair in blocks_at(0, own_grads)
                ]
                for i in (0, 1)
            )
        notify("on_mark", "ring attention backward")
        return dQs, dKs, dVs

    return AttentionOutput(outputs, backward)


def _pass_on(tokens: Tokens, blocks: Sequence[Tensor], step: int) -> list[Tensor]:
    """Send each rank's block to the next rank; return the blocks that arrive.

    At step s rank r has the block of rank r - s: two tensors, one after the other.
    """
    B, group = tokens.B, tokens.group
    rank = np.arange(group.size)
    lengths = np.roll(2 * tokens.elements(), step)  # of the block that each rank has
    data = [_padded(tokens, block, int(lengths.max())) for block in blocks]
    this_round = make_round(rank, (rank + 1) % group.size, 0, lengths, add=False)
    exchange(data, [this_round], group, call=tokens.call("ring attention"))
    return [
        B.read(x, 0, int(lengths[r - 1])).reshape((-1, tokens.heads, tokens.size))
        for x, r in zip(data, group.local_ranks, strict=True)
    ]


def _add(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> list[Tensor]:
    return [x + y for x, y in zip(xs, ys, strict=True)]


def _padded(tokens: Tokens, x: Tensor, elements: int) -> Tensor:
    """Copy x to a vector of `elements` elements."""
    B = tokens.B
    flat = B.zeros((elements,), B.dtype_of(x), B.device_of(x))
    B.write_(flat, 0, element_count(x), x)
    return flat
