"""Batches: every example once, in an order that seed and epoch alone decide."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.data import batch_count, batches


def numbered(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples and labels that carry their own number."""
    return np.arange(n * 4, dtype="float32").reshape(n, 1, 2, 2), np.arange(n)


def order(n: int, batch_size: int, **settings: object) -> list[int]:
    X, y = numbered(n)
    return [int(i) for _, part in batches(X, y, batch_size, **settings) for i in part]


@given(
    n=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
    shuffle=st.booleans(),
)
def test_every_example_comes_once_and_keeps_its_label(
    n: int, batch_size: int, seed: int, epoch: int, shuffle: bool
) -> None:
    X, y = numbered(n)
    parts = list(batches(X, y, batch_size, seed, epoch, shuffle))
    assert len(parts) == batch_count(n, batch_size)
    assert sorted(np.concatenate([part for _, part in parts])) == list(range(n))
    for part_X, part_y in parts:
        np.testing.assert_array_equal(part_X, X[part_y])
    sizes = [len(part) for part, _ in parts]
    assert sizes[:-1] == [batch_size] * (len(parts) - 1)
    assert 1 <= sizes[-1] <= batch_size


@given(n=st.integers(1, 60), seed=st.integers(0, 99), epoch=st.integers(0, 99))
def test_the_order_depends_on_seed_and_epoch_not_on_the_batch_size(
    n: int, seed: int, epoch: int
) -> None:
    whole = order(n, n, seed=seed, epoch=epoch)
    assert order(n, 7, seed=seed, epoch=epoch) == whole


def test_the_order_does_not_depend_on_numpys_global_generator() -> None:
    before = order(50, 8, seed=3)
    np.random.seed(99)
    assert order(50, 8, seed=3) == before


def test_other_seeds_and_epochs_give_other_orders() -> None:
    orders = {
        tuple(order(50, 8, seed=seed, epoch=epoch))
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(orders) == 16  # so seed 1 epoch 0 is not seed 0 epoch 1 either
    assert tuple(range(50)) not in orders


def test_the_order_is_the_same_in_every_version_of_numpy() -> None:
    # Published numbers rest on it: NumPy keeps the generator, this keeps what we draw.
    assert order(10, 4) == [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]
    text = ",".join(map(str, order(1437, 128, seed=7, epoch=3)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "a97834f0c70d0b55"


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_are_copies_that_keep_their_dtype(shuffle: bool) -> None:
    X, y = numbered(6)
    for part_X, part_y in batches(X, y, 4, shuffle=shuffle):
        assert (part_X.dtype, part_y.dtype) == (X.dtype, y.dtype)
        part_X[:] = -1
        part_y[:] = -1
    np.testing.assert_array_equal(X, numbered(6)[0])
    np.testing.assert_array_equal(y, numbered(6)[1])


X, Y = numbered(5)
