"""The benchmark compares like with like: NumPy does what allreduce does."""

import numpy as np
import pytest

from d2lmulti.bench.allreduce import (
    _numpy_parts,
    _same_work,
    bench_allreduce,
    ring_in_numpy,
)
from d2lmulti.cluster.ledger import Ledger
from d2lmulti.plans.allreduce import ALLREDUCE


@pytest.mark.parametrize("algorithm", ALLREDUCE)
def test_numpy_does_the_same_work(algorithm):
    vectors = [np.arange(11.0) + rank for rank in range(5)]
    whole = np.sum(vectors, axis=0)
    transfers = _numpy_parts(algorithm, vectors)
    planned = Ledger().count_plan(ALLREDUCE[algorithm](5, 11), itemsize=1)
    into_vectors = [
        source for target, source, _ in transfers if target.base is not None
    ]
    assert sum(map(len, into_vectors)) == planned.bytes
    _same_work(transfers)()
    assert all((x == whole).all() for x in vectors)


@pytest.mark.parametrize("length", [3, 16, 17])
def test_the_ring_written_in_numpy_sums_up(length):
    vectors = [np.arange(length) + 10.0 * rank for rank in range(8)]
    whole = np.sum(vectors, axis=0)
    ring_in_numpy(vectors)
    assert all((x == whole).all() for x in vectors)


def test_each_group_of_rows_begins_with_what_it_is_compared_with():
    timings = bench_allreduce("numpy", ranks=2, megabytes=1, repeats=1)
    first = {name for name, timing in timings.items() if timing.ratio == 1}
    assert {"NumPy", "ring of 100,000 on 8, NumPy"} <= first
    assert set(timings) - first == {
        "allreduce, ring", "memory copies", "ring of 100,000 on 8, ours",
    }  # fmt: skip


def test_every_framework_is_timed_beside_its_own_two_lines(framework):
    timings = bench_allreduce(framework.name, ranks=2, megabytes=1, repeats=1)
    assert timings["one element on 2, two lines"].ratio == 1
    assert timings["one element on 2, ours"].seconds > 0
