"""Ring attention: keys and values go round, and meet the queries of each rank in turn.

A rank keeps its queries and works on one block of others' keys and values at a time. On
the way back the keys and values go round once more, with their gradients: each rank
adds its share and hands them on, until they are home.
Source: Liu, Zaharia and Abbeel (2023). Chapter: *long_sequences*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backends.protocol import Tensor, element_count
from ...comm.allreduce import exchange
from ...comm.group import Group
from ...events import mark
from ...plans.rounds import make_round
from .blocks import Attended, BlockAttention
from .positions import Tokens, check_like, check_tokens


def ring_attention(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    positions: Sequence[Any],
    causal: bool = True,
    group: Group | None = None,
) -> Attended:
    """Mix values by softmax(Q K^T / sqrt(size)) over the tokens of all ranks.

    Each list has one tensor (tokens, heads, size) a local rank; `positions` are those
    of *every* rank's tokens (see `token_positions`), and with `causal` a query sees its
    own position and those before. Each of n ranks sends n - 1 blocks of keys and of
    values; on the way back as many, and as many of their gradients. Records no graph:
    `Attended.backward` is the way back. Raises `InvalidInput` for tensors that are not
    what `positions` says, and for a dtype other than float32 and float64.
    """
    tokens = check_tokens(queries, keys, values, positions, causal, group)
    B, ranks = tokens.B, tokens.group.local_ranks
    with B.pause():
        mine = [
            BlockAttention(B, Q, tokens.at[rank], tokens.causal)
            for Q, rank in zip(queries, ranks, strict=True)
        ]
        ring = _Ring(tokens, keys, values)
        for step in range(tokens.group.size):
            ring.turn(step, 2)
            for i, one in enumerate(mine):
                one.see(*ring.block(i, step))
        outputs = [one.finish() for one in mine]
    mark("ring attention forward")

    def back(grads: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        at = [tokens.at[rank] for rank in ranks]
        check_like("gradients", grads, at, queries[0], tokens.group)
        with B.pause():
            ring = _Ring(tokens, keys, values)
            for one, grad in zip(mine, grads, strict=True):
                one.start_back(grad)
            for step in range(tokens.group.size):
                ring.turn(step, 2 if step < 2 else 4)
                for i, one in enumerate(mine):
                    ring.add(i, step, *one.see_back(*ring.block(i, step)))
            ring.bring_home()
            found = [one.finish_back() for one in mine], *ring.gradients()
        mark("ring attention backward")
        return found

    return Attended(outputs, back)


class _Ring:
    """Blocks under way: for each local rank one vector of six places.

    Keys, values and their gradients of the block that is here now, one after the other,
    as long as that block is. Then, at a place of their own, the gradients of the rank's
    own keys and values, so that a block need not travel before it has any.
    """

    def __init__(
        self, tokens: Tokens, keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> None:
        self.B, self.group, self._tokens = tokens.B, tokens.group, tokens
        self._call = tokens.call("ring attention")
        self._numbers = tokens.numbers()
        self._home = 4 * int(self._numbers.max())
        self._data = []
        for K, V in zip(keys, values, strict=True):
            length, dtype = element_count(K), self.B.dtype_of(K)
            x = self.B.zeros((self._home * 3 // 2,), dtype, self.B.device_of(K))
            self.B.write_(x, 0, length, self.B.copy_to(K, self.B.device_of(K)))
            self.B.write_(x, length, 2 * length, self.B.copy_to(V, self.B.device_of(V)))
            self._data.append(x)

    def owner(self, i: int, step: int) -> int:
        """Tell whose block is here after so many turns."""
        return (self.group.local_ranks[i] - step) % self.group.size

    def turn(self, step: int, places: int) -> None:
        """Hand the first so many places on to the next rank, but for step 0."""
        if step:
            held = np.roll(self._numbers, step - 1)
            self._pass_on(0, places * held, False, 0)

    def block(self, i: int, step: int) -> tuple[Tensor, Tensor, np.ndarray]:
        """Give the keys, the values and the positions of the block that is here."""
        at = self._tokens.at[self.owner(i, step)]
        shape = len(at), self._tokens.heads, self._tokens.size
        length, x = int(np.prod(shape)), self._data[i]
        K, V = self.B.read(x, 0, length), self.B.read(x, length, 2 * length)
        return K.reshape(shape), V.reshape(shape), at

    def add(self, i: int, step: int, dK: Tensor, dV: Tensor) -> None:
        """Add a share of the gradients of the block that is here."""
        length = element_count(dK)
        first = 2 * length if step else self._home
        for grad in (dK, dV):  # before its second turn a block has none: overwrite
            grad = self.B.copy_to(grad, self.B.device_of(grad))
            self.B.write_(self._data[i], first, first + length, grad, add=step > 1)
            first += length

    def bring_home(self) -> None:
        """Hand the gradients on for the last time: the next rank is their own."""
        n = self.group.size
        if n > 1:
            held = np.roll(self._numbers, n - 1)
            self._pass_on(2 * held, 2 * held, True, self._home)

    def gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Give the whole gradients of each local rank's keys and values."""
        found: tuple[list[Tensor], list[Tensor]] = [], []
        for x, rank in zip(self._data, self.group.local_ranks, strict=True):
            length, first = int(self._numbers[rank]), self._home
            shape = -1, self._tokens.heads, self._tokens.size
            for grads in found:
                part = self.B.read(x, first, first + length)
                grads.append(self.B.copy_to(part.reshape(shape), self.B.device_of(x)))
                first += length
        return found

    def _pass_on(self, first: Any, length: Any, add: bool, target_first: Any) -> None:
        n = self.group.size
        rank = np.arange(n)
        this_round = make_round(
            rank, (rank + 1) % n, first, length, add, np.full(n, target_first)
        )
        exchange(self._data, [this_round], self.group, call=self._call)
