"""The benchmarks compare like with like, and report the seconds of one call."""

import time

import numpy as np
import pytest

from benchmarks import engines
from benchmarks.allreduce import (
    _numpy_parts,
    _same_work,
    ring_in_numpy,
)
from benchmarks.timing import compare_times, take_turns
from d2lmulti.backends import BACKENDS
from d2lmulti.observe.ledger import Ledger
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


# -- seconds of one call, by a clock that only the candidates advance ------------------


@pytest.fixture
def clock(monkeypatch):
    """Stop the clock; return a function that advances it by a second."""
    now = 0.0

    def tick(*arguments, **options):
        nonlocal now
        now += 1

    def read():
        nonlocal now
        now += 1e-9  # no time is zero: ratios are formed
        return now

    monkeypatch.setattr(time, "perf_counter", read)
    return tick


ONE = pytest.approx(1, rel=1e-6)


def test_the_seconds_are_those_of_one_call(clock):
    def two():
        clock()
        clock()

    found = take_turns({"one": clock, "two": two}, repeats=3, warm_up=2, calls=100)
    assert [t.seconds for t in found.values()] == [ONE, pytest.approx(2)]
    assert [t.ratio for t in found.values()] == [ONE, pytest.approx(2)]
    assert {t.repeats for t in found.values()} == {3}


def test_quartiles_are_of_the_paired_ratios():
    timing = compare_times([2, 4, 6, 8, 10], [2, 1, 2, 2, 10])  # 1, 4, 3, 4, 1
    assert timing.seconds == 6
    assert (timing.ratio, timing.ratio_quartiles) == (3, (1, 4))


def test_rows_of_all_engines_are_kept(monkeypatch):
    def timings(measure, engine, *rest):
        return {f"{engine}, native": engine, "memory copy": engine}

    monkeypatch.setattr(engines, "on_two_cores", timings)
    monkeypatch.setitem(engines.ENGINES_OF, "numpy", ("torch", "shared_memory"))
    assert engines.bench_engines("numpy") == {
        "torch, native": "torch",
        "memory copy": "torch",
        "shared_memory, native": "shared_memory",
    }


def test_every_backend_has_an_engine_to_time():
    assert engines.ENGINES_OF.keys() == BACKENDS.keys()
