"""The benchmark compares like with like: NumPy does what allreduce does."""

import numpy as np
import pytest

from d2lmulti.bench.allreduce import _numpy_parts, _same_work, bench_allreduce
from d2lmulti.plans.allreduce import ALLREDUCE


@pytest.mark.parametrize("algorithm", ALLREDUCE)
def test_numpy_does_the_same_work(algorithm):
    vectors = [np.arange(11.0) + rank for rank in range(5)]
    whole = np.sum(vectors, axis=0)
    transfers = _numpy_parts(algorithm, vectors)
    assert sum(len(source) for _, source, _ in transfers) == 2 * 4 * 11
    _same_work(transfers)()
    assert all((x == whole).all() for x in vectors)


def test_the_table_has_the_limit_and_a_ratio_for_each_row():
    timings = bench_allreduce("numpy", ranks=2, megabytes=1, repeats=1)
    assert list(timings) == [
        "NumPy",
        "allreduce, ring",
        "memory copies",
    ]
    assert timings["NumPy"].ratio == 1
    assert all(t.seconds > 0 and t.ratio > 0 for t in timings.values())
