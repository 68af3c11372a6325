"""Attention to keys and values that arrive in blocks: the online softmax.

Softmax needs the largest score of a row and the sum of its exponentials. Both can be
updated block by block: when a larger score arrives, the earlier sums are scaled down.
So no row of scores is stored in full. The backward pass recomputes the scores.
Source: Milakov and Gimelshein (2018); Dao et al. (2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..backends.protocol import Backend, Tensor
from ..plans.rounds import even_bounds

MASKED = -1e9  # added to the score of a later key: exp(-1e9) is 0
# The largest score so far, the sum of the weights, the weighted sum of the values.
State = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class AttentionOutput:
    """The output of attention on each local rank, and its backward pass."""

    outputs: list[Tensor]  #: (tokens, heads, size of a head), new on each rank
    _backward: Callable[[Sequence[Tensor]], tuple[list[Tensor], ...]]

    def backward(self, grads: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        """Return the gradients of the queries, keys, and values, given the outputs'.

        Each is a list with a new tensor per local rank. The inputs must not have been
        changed since. Raises `InvalidInput` for gradients of other shapes.
        """
        return self._backward(grads)


def add_block(B: Backend, so_far: State | None, scores: Tensor, V: Tensor) -> State:
    """Update the online softmax with one more block.

    scores (heads, queries, keys) and V (heads, keys, size).
    """
    top = B.max(scores, -1, keepdims=True)
    if so_far is not None:
        top = B.max(B.concat([so_far[0], top], -1), -1, keepdims=True)
    weights = B.exp(scores - top)
    total, mixed = B.sum(weights, -1, keepdims=True), weights @ V
    if so_far is None:
        return top, total, mixed
    rescale = B.exp(so_far[0] - top)  # the earlier sums had a smaller maximum
    return top, so_far[1] * rescale + total, so_far[2] * rescale + mixed


class BlockAttention:
    """The queries of one rank, (tokens, heads, size), and their online softmax.

    `positions` are those of the tokens. Queries and keys are processed in halves,
    because in a zigzag one half of a block may come after all queries, and is then
    skipped.
    """

    def __init__(
        self, B: Backend, Q: Tensor, positions: np.ndarray, causal: bool
    ) -> None:
        self.B, self._positions, self._causal = B, _halves(positions), causal
        self._scale = int(Q.shape[-1]) ** -0.5
        self._queries = self._cut(Q, self._positions)
        self._states: list[State | None] = [None] * len(self._positions)

    def update(self, K: Tensor, V: Tensor, positions: np.ndarray) -> None:
        """Attend to the keys and values of the tokens at these positions."""
        halves = _halves(positions)
        Ks, Vs = self._cut(K, halves), self._cut(V, halves)
        for i, j, scores in self._pairs(Ks, halves):
            self._states[i] = add_block(self.B, self._states[i], scores, Vs[j])

    def finish(self) -> Tensor:
        """Return the output; store one logarithm per query and head.

        Each query must have seen a key by now.
        """
        states = [state for state in self._states if state is not None]
        self._logs = [top + self.B.log(total) for top, total, _ in states]
        self._mixed = [mixed / total for _, total, mixed in states]
        self._states.clear()
        return self._join(self._mixed)

    def start_backward(self, dO: Tensor) -> None:
        """Begin the backward pass, with the gradient of the output."""
        self._dO = self._cut(dO, self._positions)
        pairs = zip(self._dO, self._mixed, strict=True)
        self._means = [self.B.sum(d * o, -1, keepdims=True) for d, o in pairs]
        self._dQ = [Q * 0 for Q in self._queries]

    def backward_block(
        self, K: Tensor, V: Tensor, positions: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Return the partial gradients of K and V; add to that of the queries."""
        halves = _halves(positions)
        Ks, Vs = self._cut(K, halves), self._cut(V, halves)
        dK, dV = [k * 0 for k in Ks], [v * 0 for v in Vs]
        for i, j, scores in self._pairs(Ks, halves):
            weights, dO = self.B.exp(scores - self._logs[i]), self._dO[i]
            dV[j] = dV[j] + self._transposed(weights) @ dO
            # The softmax subtracts the mean of the weights' gradients from each.
            dS = weights * (dO @ self._transposed(Vs[j]) - self._means[i]) * self._scale
            self._dQ[i] = self._dQ[i] + dS @ Ks[j]
            dK[j] = dK[j] + self._transposed(dS) @ self._queries[i]
        return self._join(dK), self._join(dV)

    def finish_backward(self) -> Tensor:
        """Return the gradient of the queries."""
        return self._join(self._dQ)

    def _pairs(
        self, Ks: Sequence[Tensor], halves: Sequence[np.ndarray]
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Yield (half of the queries, half of the keys, scores) that are not masked."""
        for i, (Q, q_at) in enumerate(zip(self._queries, self._positions, strict=True)):
            for j, (K, k_at) in enumerate(zip(Ks, halves, strict=True)):
                if self._causal and k_at.min() > q_at.max():
                    continue
                scores = Q @ self._transposed(K) * self._scale
                if self._causal and k_at.max() > q_at.min():
                    mask = np.where(k_at > q_at[:, None], MASKED, 0.0)
                    mask = mask.astype(self.B.dtype_of(Q))
                    scores = scores + self.B.array(mask, self.B.device_of(Q))
                yield i, j, scores

    def _cut(self, x: Tensor, parts: Sequence[np.ndarray]) -> list[Tensor]:
        """Cut by tokens, and move the heads to the front."""
        cut, first = [], 0
        for part in parts:
            last = first + len(part)
            cut.append(self.B.transpose(x[first:last], (1, 0, 2)))
            first = last
        return cut

    def _join(self, xs: Sequence[Tensor]) -> Tensor:
        return self.B.transpose(self.B.concat(list(xs), 1), (1, 0, 2))

    def _transposed(self, x: Tensor) -> Tensor:
        return self.B.transpose(x, (0, 2, 1))


def _halves(positions: np.ndarray) -> list[np.ndarray]:
    """Cut positions into two halves as a zigzag does; the first is not shorter."""
    return [positions[a:b] for a, b in even_bounds(len(positions), 2) if a < b]
