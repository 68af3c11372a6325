"""Cut a data set into batches, in an order that every framework shares.

NumPy samples the order from (seed, epoch) and nothing else, so a run can be repeated or
resumed at any epoch, under any framework and on any number of devices.
Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..checks import check_array, check_count, check_flag, check_kind
from ..comm.group import Group
from ..errors import InvalidInput
from ..plans.rounds import even_bounds


def batch_count(n: int, batch_size: int) -> int:
    """Return the number of batches of n examples; a short last one counts too.

    >>> batch_count(10, 4)
    3
    """
    n = check_count("number of examples", n)
    batch_size = check_count("batch_size", batch_size)
    return -(-n // batch_size)  # rounded up


def batches(
    X: np.ndarray,
    y: np.ndarray,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    group: Group | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over (X, y) in batches of `batch_size`; the last may be shorter.

    X (n, ...) and y (n, ...) are NumPy arrays. Every example comes exactly once;
    without `shuffle` in the order of X. The batches are copies. With a group, a batch
    has only the examples of this process's ranks, as `split_batch` cuts them. Raises
    `InvalidInput` at once, not at the first batch.

    >>> X = np.arange(5)
    >>> [part.tolist() for part, _ in batches(X, X, 2, shuffle=False)]
    [[0, 1], [2, 3], [4]]
    """
    check_array("X", X)
    check_array("y", y)
    n = len(X)
    if not 0 < n == len(y):
        raise InvalidInput(
            f"expected one label per example, got {n} examples and {len(y)} labels"
        )
    count = batch_count(n, batch_size)
    order = np.arange(n)
    if check_flag("shuffle", shuffle):
        check_count("seed", seed, min=0, max=None)
        check_count("epoch", epoch, min=0, max=None)
        order = np.random.default_rng([seed, epoch]).permutation(n)
    parts = (order[i * batch_size : (i + 1) * batch_size] for i in range(count))
    if group is not None:
        check_kind("group", group, Group, "a group of ranks")
        parts = (_own(part, group) for part in parts)
    return ((X[part], y[part]) for part in parts)


def _own(part: np.ndarray, group: Group) -> np.ndarray:
    bounds = even_bounds(len(part), group.size)
    return np.concatenate([part[slice(*bounds[rank])] for rank in group.local_ranks])
