"""The slow data set: the same in every process, and a stamp that tells the truth."""

from __future__ import annotations

import os
import pickle
import time

import numpy as np
import pytest

from d2lmulti.errors import InvalidInput
from d2lmulti.observe.timeline import Timeline
from d2lmulti_book.slow_data import SlowData, Stamps


def test_an_example_depends_on_its_number_alone():
    data = SlowData(12, passes=0)
    again = pickle.loads(pickle.dumps(data))  # as a spawned worker gets it
    for i in (0, 3, np.int64(11)):
        (x, y, _), (other, label, _) = data[i], again[i]
        assert (x == other).all() and y == label == i % 10
    assert (x.shape, x.dtype, y.dtype) == ((784,), "float32", "int64")
    assert (data[0][0] != data[10][0]).any()


def test_the_stamp_names_the_process_and_its_times():
    before = time.perf_counter()
    pid, begin, end = SlowData(1)[0][2]
    assert pid == os.getpid()
    assert before <= begin < end <= time.perf_counter()


def test_it_ends_like_a_sequence():
    assert len(list(SlowData(3, passes=0))) == len(SlowData(3)) == 3


@pytest.mark.parametrize(("examples", "passes"), [(0, 1), (1, -1)])
def test_nothing_to_prepare_is_refused(examples, passes):
    with pytest.raises(InvalidInput, match="got (0|-1)"):
        SlowData(examples, passes)


def test_stamps_become_spans_of_the_trainer_and_of_numbered_workers():
    t = Timeline()
    stamped = Stamps(t)
    now = t.start
    for process, begin in [(os.getpid(), 1.0), (77, 2.0), (78, 3.0), (77, 4.0)]:
        rows = [[process, now + begin + i, now + begin + i + 0.5] for i in range(2)]
        stamped.enter(np.array(rows))
    assert [s.track for s in t.spans] == ["trainer", "worker 0", "worker 1", "worker 0"]
    assert [s.begin for s in t.spans] == pytest.approx([1, 2, 3, 4])
    assert [s.end - s.begin for s in t.spans] == pytest.approx([1.5] * 4)
    assert {s.name for s in t.spans} == {"prepare"}
