"""Requests of ranks that differ are named; a loss of split logits overflows nowhere."""

from __future__ import annotations

import numpy as np
import pytest

from d2lmulti.backends.protocol import Backend
from d2lmulti.comm.cooperative import Copy, Sum, run_cooperatively
from d2lmulti.comm.group import local_group
from d2lmulti.errors import InvalidInput
from d2lmulti.models.tensor_parallel.layers import RankInfo, named
from d2lmulti.models.tensor_parallel.transformer import split_cross_entropy

RANKS = 3


def model(*requests):
    """Stand for a model that makes these requests and returns its last answer."""
    answer = None
    for request in requests:
        answer = yield request
    return answer


def sum_of(B, *shape):
    return Sum(B.array(np.ones(shape)))


def test_ranks_that_make_different_requests_are_named(reference: Backend) -> None:
    B = reference
    two, three, square = sum_of(B, 2), sum_of(B, 3), sum_of(B, 2, 2)
    layers = [named(layer, model(Copy(two.tensor))) for layer in ("dense 1", "dense 2")]
    cases = [
        ([model(two), model(three), model(two)],
         r"\(2,\) float64 on ranks 0, 2 and Sum of \(3,\) float64 on rank 1"),
        ([model(two), model(two, square), model()],
         r"\(2,\) float64 on ranks 0, 1 and the end of the model on rank 2"),
        ([model(two), model(two, square), model(two)],
         r"the end of the model on ranks 0, 2 and Sum of \(2, 2\) float64 on rank 1"),
        (layers, "in dense 1 on rank 0 and .* in dense 2 on rank 1"),
        ([model("sum"), model("sum")], "got str"),
    ]  # fmt: skip
    for models, message in cases:
        with pytest.raises(InvalidInput, match=message):
            run_cooperatively(B, models, local_group(len(models)))


@pytest.mark.parametrize("shift", [0.0, 1000.0, -1000.0])
def test_a_loss_of_split_logits_equals_the_whole(B: Backend, shift: float) -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(5, 6)) * 3
    logits[:, 4:] += shift  # the largest lie with the last rank, or far from it
    y = np.array([0, 5, 2, 3, 4])
    whole = B.array(logits)
    B.attach_grad(whole)
    with B.record():
        wanted = B.cross_entropy(whole, B.array(y))
    B.backward([wanted])
    parts = [B.array(part) for part in np.split(logits, RANKS, axis=1)]
    for part in parts:
        B.attach_grad(part)
    with B.record():
        forwards = [
            split_cross_entropy(B, part * 1, B.array(y), RankInfo(r, RANKS, (5,)))
            for r, part in enumerate(parts)
        ]
        losses, segments = run_cooperatively(B, forwards, local_group(RANKS))
    segments.backward(losses)
    for loss in losses:
        assert np.allclose(B.numpy(loss), B.numpy(wanted), rtol=1e-12, atol=1e-12)
    grads = np.concatenate([B.numpy(B.grad(part)) for part in parts], axis=1)
    assert np.allclose(grads, B.numpy(B.grad(whole)), rtol=1e-10, atol=1e-12)
