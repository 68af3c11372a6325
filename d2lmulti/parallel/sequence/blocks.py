"""Attention to keys and values that come in blocks: the online softmax.

Softmax needs the largest score of a row and the sum of its exponentials. Both can be
kept *so far*: when a larger score comes, what was summed up before is scaled down. So
no row of scores is ever whole. The way back computes the scores once more.
Source: Milakov and Gimelshein (2018); Dao et al. (2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...backends.protocol import Backend, Tensor
from ...plans.rounds import even_bounds

FAR = -1e9  # what a key that comes later adds to its score: exp(-1e9) is 0
State = tuple[Tensor, Tensor, Tensor]  # so far: largest score, sum, sum of values


@dataclass(frozen=True)
class Attended:
    """What attention gave each local rank, and the way back."""

    outputs: list[Tensor]  #: (tokens, heads, size of a head), new on each rank
    _back: Callable[[Sequence[Tensor]], tuple[list[Tensor], ...]]

    def backward(self, grads: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        """Turn the outputs' gradients to those of the queries, the keys, the values.

        Each is a list with a new tensor for each local rank. What went in must not have
        been changed since. Raises `InvalidInput` for gradients of other shapes.
        """
        return self._back(grads)


def add_block(B: Backend, so_far: State | None, scores: Tensor, V: Tensor) -> State:
    """Let queries see one more block: the step of the online softmax.

    scores (heads, queries, keys) and V (heads, keys, size).
    """
    top = B.max(scores, -1, keepdims=True)
    if so_far is not None:
        top = B.max(B.concat([so_far[0], top], -1), -1, keepdims=True)
    weights = B.exp(scores - top)
    total, mixed = B.sum(weights, -1, keepdims=True), weights @ V
    if so_far is None:
        return top, total, mixed
    fade = B.exp(so_far[0] - top)  # what was summed up under a smaller maximum
    return top, so_far[1] * fade + total, so_far[2] * fade + mixed


class BlockAttention:
    """The queries of one rank, (tokens, heads, size), and what they have seen so far.

    `at` are the tokens' positions. Work is done in halves: one part of a zigzag may
    come after all queries where the other does not, and is left out.
    """

    def __init__(self, B: Backend, Q: Tensor, at: np.ndarray, causal: bool) -> None:
        self.B, self._at, self._causal = B, _halves(at), causal
        self._scale = int(Q.shape[-1]) ** -0.5
        self._queries = self._cut(Q, self._at)
        self._seen: list[State | None] = [None] * len(self._at)

    def see(self, K: Tensor, V: Tensor, at: np.ndarray) -> None:
        """Let the queries see the keys and values of the tokens at `at`."""
        parts = _halves(at)
        Ks, Vs = self._cut(K, parts), self._cut(V, parts)
        for i, j, scores in self._pairs(Ks, parts):
            self._seen[i] = add_block(self.B, self._seen[i], scores, Vs[j])

    def finish(self) -> Tensor:
        """Give the output, and keep of the softmax one logarithm a query and head.

        Each query must have seen a key by now.
        """
        seen = [state for state in self._seen if state is not None]
        self._logs = [top + self.B.log(total) for top, total, _ in seen]
        self._mixed = [mixed / total for _, total, mixed in seen]
        self._seen.clear()
        return self._join(self._mixed)

    def start_back(self, dO: Tensor) -> None:
        """Begin the way back, with the gradient of the output."""
        self._dO = self._cut(dO, self._at)
        both = zip(self._dO, self._mixed, strict=True)
        self._means = [self.B.sum(d * o, -1, keepdims=True) for d, o in both]
        self._dQ = [Q * 0 for Q in self._queries]

    def see_back(self, K: Tensor, V: Tensor, at: np.ndarray) -> tuple[Tensor, Tensor]:
        """Give these queries' share of the gradients of K and V; add to their own."""
        parts = _halves(at)
        Ks, Vs = self._cut(K, parts), self._cut(V, parts)
        dK, dV = [k * 0 for k in Ks], [v * 0 for v in Vs]
        for i, j, scores in self._pairs(Ks, parts):
            weights, dO = self.B.exp(scores - self._logs[i]), self._dO[i]
            dV[j] = dV[j] + self._turn(weights) @ dO
            # Softmax takes the mean of the weights' gradients from each of them.
            dS = weights * (dO @ self._turn(Vs[j]) - self._means[i]) * self._scale
            self._dQ[i] = self._dQ[i] + dS @ Ks[j]
            dK[j] = dK[j] + self._turn(dS) @ self._queries[i]
        return self._join(dK), self._join(dV)

    def finish_back(self) -> Tensor:
        """Give the gradient of the queries."""
        return self._join(self._dQ)

    def _pairs(
        self, Ks: Sequence[Tensor], parts: Sequence[np.ndarray]
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Give (half of the queries, half of the keys, scores) where they meet."""
        for i, (Q, mine) in enumerate(zip(self._queries, self._at, strict=True)):
            for j, (K, at) in enumerate(zip(Ks, parts, strict=True)):
                if self._causal and at.min() > mine.max():
                    continue
                scores = Q @ self._turn(K) * self._scale
                if self._causal and at.max() > mine.min():
                    later = np.where(at > mine[:, None], FAR, 0.0)
                    later = later.astype(self.B.dtype_of(Q))
                    scores = scores + self.B.array(later, self.B.device_of(Q))
                yield i, j, scores

    def _cut(self, x: Tensor, parts: Sequence[np.ndarray]) -> list[Tensor]:
        """Cut by tokens, and put the heads first."""
        ends = np.cumsum([len(part) for part in parts]).tolist()
        starts = [0, *ends[:-1]]
        return [
            self.B.transpose(x[a:b], (1, 0, 2))
            for a, b in zip(starts, ends, strict=True)
        ]

    def _join(self, xs: Sequence[Tensor]) -> Tensor:
        return self.B.transpose(self.B.concat(list(xs), 1), (1, 0, 2))

    def _turn(self, x: Tensor) -> Tensor:
        return self.B.transpose(x, (0, 2, 1))


def _halves(at: np.ndarray) -> list[np.ndarray]:
    """Cut positions in two, the first not shorter, as a zigzag's parts are."""
    return [at[a:b] for a, b in even_bounds(len(at), 2) if a < b]
