"""The two ends of a language model split by the vocabulary: embedding and loss.

A device holds the rows of some tokens, and gives zero for the others; at the other end
it holds some columns of the logits, of which no device ever sees all.
Source: Shoeybi et al. (2019). Chapter: *layer_parallel*.
"""

from __future__ import annotations

import numpy as np

from ...backends.protocol import Backend, Tensor
from ...checks import check_ids
from ...plans.requests import Max, Reduce
from .split import RankInfo, Talk


def embed_some(B: Backend, ids: Tensor, W: Tensor, part: RankInfo) -> Tensor:
    """Look up the ids (...) among this part's rows W (vocabulary / ranks, d).

    The result (..., d) is zero for all other ids: a summand of the whole embedding.
    """
    mine, inside = _own_ids(B, ids, W.shape[0], part)
    mask = inside[..., None].astype(B.dtype_of(W))
    device = B.device_of(W)
    return B.embedding(B.array(mine, device), W) * B.array(mask, device)


def split_cross_entropy(B: Backend, logits: Tensor, y: Tensor, part: RankInfo) -> Talk:
    """Compute the loss of every target, (n,), from logits (n, vocabulary / ranks).

    log(sum of exp) - logit of the target: the devices exchange a maximum, then two
    sums a target, instead of the logits themselves.
    """
    n, columns = logits.shape
    largest, logits = yield Max(B.max(logits, -1, True), keep=(logits,))  # (n, 1)
    logits = logits - largest  # at most 0, so that no exponential overflows
    target, inside = _own_ids(B, y.reshape((-1,)), columns, part)
    chosen = np.zeros((n, columns), B.dtype_of(logits))
    chosen[inside, target[inside]] = 1
    chosen = B.array(chosen, B.device_of(logits))
    sums = [B.sum(B.exp(logits), 1), B.sum(logits * chosen, 1)]
    (sums,) = yield Reduce(B.concat(sums))  # (2n,)
    return B.log(sums[:n]) - sums[n:]


def _own_ids(
    B: Backend, ids: Tensor, count: int, part: RankInfo
) -> tuple[np.ndarray, np.ndarray]:
    """Count ids from this part's first, 0 for those outside; and say which are in."""
    whole = B.numpy(ids)
    check_ids(whole, count * part.ranks)
    mine = whole - part.rank * count
    inside = (mine >= 0) & (mine < count)
    return np.where(inside, mine, 0), inside
