"""Ulysses: two all-to-alls exchange tokens for heads, and back.

Between them a rank has all tokens of some heads, and attention is that of one device.
Source: Jacobs et al. (2023). Chapter: *long_sequences*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backends.protocol import Tensor
from ...comm.allreduce import exchange
from ...comm.group import Group
from ...errors import InvalidInput
from ...events import mark
from ...plans.rounds import make_round
from .blocks import Attended, BlockAttention
from .positions import Tokens, check_like, check_tokens


def ulysses_attention(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    positions: Sequence[Any],
    causal: bool = True,
    group: Group | None = None,
) -> Attended:
    """Do what `ring_attention` does, each rank for some of the heads and all tokens.

    Takes and gives the same. Queries, keys, values and outputs are exchanged once, and
    so are their gradients; of each, one part in n stays. Raises `InvalidInput` as
    `ring_attention` does, and for heads that the number of ranks does not divide.
    """
    tokens = check_tokens(queries, keys, values, positions, causal, group)
    B, n = tokens.B, tokens.group.size
    if tokens.heads % n:
        raise InvalidInput(
            f"cannot share out {tokens.heads} heads over {n} ranks, because {n} does "
            "not divide them; use ring_attention, or as many ranks as divide the heads"
        )
    everywhere = np.concatenate(tokens.at)
    with B.pause():
        Qs, Ks, Vs = (_to_heads(tokens, xs) for xs in (queries, keys, values))
        mine = [BlockAttention(B, Q, everywhere, tokens.causal) for Q in Qs]
        for one, K, V in zip(mine, Ks, Vs, strict=True):
            one.see(K, V, everywhere)
        outputs = _to_tokens(tokens, [one.finish() for one in mine])
    mark("Ulysses forward")

    def back(grads: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        at = [tokens.at[rank] for rank in tokens.group.local_ranks]
        check_like("gradients", grads, at, queries[0], tokens.group)
        dKs, dVs = [], []
        with B.pause():
            dOs = _to_heads(tokens, grads)
            for one, dO, K, V in zip(mine, dOs, Ks, Vs, strict=True):
                one.start_back(dO)
                dK, dV = one.see_back(K, V, everywhere)
                dKs.append(dK)
                dVs.append(dV)
            dQs = [one.finish_back() for one in mine]
            found = tuple(_to_tokens(tokens, xs) for xs in (dQs, dKs, dVs))
        mark("Ulysses backward")
        return found

    return Attended(outputs, back)


def _to_heads(tokens: Tokens, xs: Sequence[Tensor]) -> list[Tensor]:
    """Turn (own tokens, all heads, size) to (all tokens, own heads, size)."""
    B, n = tokens.B, tokens.group.size
    lengths = np.repeat(tokens.numbers()[:, None] // n, n, axis=1)
    by_heads = [B.transpose(x, (1, 0, 2)) for x in xs]  # a rank's heads lie together
    return [
        B.transpose(B.concat(list(parts), 1), (1, 0, 2))
        for parts in _swap(tokens, by_heads, lengths, (tokens.heads // n, -1))
    ]


def _to_tokens(tokens: Tokens, xs: Sequence[Tensor]) -> list[Tensor]:
    """Turn (all tokens, own heads, size) to (own tokens, all heads, size)."""
    n = tokens.group.size
    lengths = np.repeat(tokens.numbers()[None] // n, n, axis=0)
    return [
        tokens.B.concat(list(parts), 1)
        for parts in _swap(tokens, xs, lengths, (-1, tokens.heads // n))
    ]


def _swap(
    tokens: Tokens, xs: Sequence[Tensor], lengths: np.ndarray, shape: Sequence[int]
) -> list[list[Tensor]]:
    """Exchange all with all: `lengths[s, t]` numbers of rank s go to rank t.

    They lie one after the other in `xs`. Gives each local rank what came from every
    rank, in the shape (*shape, size). (`alltoall` takes blocks of one length alone.)
    """
    B, group = tokens.B, tokens.group
    leave = np.cumsum(lengths, axis=1) - lengths  # where the part for t begins at s
    room = int(lengths.sum(axis=1).max())
    arrive = room + np.cumsum(lengths, axis=0) - lengths
    data = []
    for x in xs:
        x = B.copy_to(x, B.device_of(x)).reshape((-1,))  # row by row
        space = room + int(lengths.sum(axis=0).max())
        wide = B.zeros((space,), B.dtype_of(x), B.device_of(x))
        B.write_(wide, 0, len(x), x)
        data.append(wide)
    source, target = np.nonzero(~np.eye(group.size, dtype=bool))
    pairs = source, target
    this_round = make_round(
        source, target, leave[pairs], lengths[pairs], False, arrive[pairs]
    )
    rounds = [this_round] if len(this_round) else []
    exchange(data, rounds, group, call=tokens.call("Ulysses"))
    found = []
    for x, rank in zip(data, group.local_ranks, strict=True):
        parts = []
        for s in range(group.size):
            first = leave[s, s] if s == rank else arrive[s, rank]
            part = B.read(x, int(first), int(first + lengths[s, rank]))
            parts.append(part.reshape((*shape, tokens.size)))
        found.append(parts)
    return found
