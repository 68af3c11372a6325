"""Test accuracy, with the work split over all devices (D2L's fourth exercise)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backends import backend_of
from ..backends.protocol import AnyDevice, Tensor
from ..checks import check_array, check_count, check_ids, check_lists
from ..comm.allreduce import allreduce
from ..comm.collectives import usual_algorithm
from ..comm.group import Group, group_for
from ..errors import InvalidInput, framework_errors
from ..models import get_model
from ..models.model import Model
from ..models.networks import LENET
from ..plans.rounds import even_bounds


def evaluate(
    device_params: Sequence[Sequence[Tensor]],
    X: np.ndarray,
    y: np.ndarray,
    devices: Sequence[AnyDevice],
    *,
    model: str | Model = LENET,
    batch_size: int = 512,
    group: Group | None = None,
) -> float:
    """Return the fraction of the targets y that the model predicts.

    X (n, ...) and y (n, ...) are NumPy arrays. Every device counts the hits in its
    shard with *its own* parameters, and the counts are summed, so a replica that
    diverged lowers the result instead of hiding behind replica 0.
    """
    check_lists("device_params", device_params, len(devices))
    check_array("X", X, "fiu", "numbers")
    check_array("y", y, "iu", "whole numbers")
    batch_size = check_count("batch_size", batch_size)
    model, group = get_model(model), group_for(len(devices), group)
    if model.vocabulary:
        check_ids(X, model.vocabulary)
    if not 0 < len(X) == len(y):
        raise InvalidInput(
            f"expected one label per example, got {len(X)} examples and {len(y)} labels"
        )
    B = backend_of(device_params[0][0])
    bounds = even_bounds(len(X), group.size)
    # All devices compute before the first result is waited for, so that they overlap.
    guesses: list[list[Tensor]] = [[] for _ in devices]
    for i, rank in enumerate(group.local_ranks):
        start, end = bounds[rank]
        for first in range(start, end, batch_size):
            part = B.array(X[first : min(first + batch_size, end)], devices[i])
            with B.pause(), framework_errors(model.name, part):
                logits = model.forward_eval(B, device_params[i], part)
                guesses[i].append(B.argmax(logits))
    hits = []
    for i, rank in enumerate(group.local_ranks):
        labels = y[slice(*bounds[rank])].reshape(-1)
        guess = [B.numpy(part) for part in guesses[i]]
        right = np.concatenate(guess) == labels if guess else []
        hits.append(B.array([np.count_nonzero(right)], devices[i]))
    allreduce(hits, usual_algorithm(group), group)
    return int(B.numpy(hits[0])[0]) / y.size
