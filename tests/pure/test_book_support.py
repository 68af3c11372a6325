"""What notebooks use beside the library: data, stamps, other programs' load."""

from __future__ import annotations

import os
import pickle
import time

import numpy as np

from d2lmulti.observe.timeline import Timeline
from d2lmulti_book.docstrings import MODULES, docstrings, read_docstrings
from d2lmulti_book.slow_data import SlowData, Stamps


def test_docstrings_have_their_modules_as_labels():
    pieces = read_docstrings(32)
    modules = [module for _, module in pieces]
    assert min(modules.count(module) for module in MODULES) >= 30
    assert len({tuple(words) for words, _ in pieces}) == len(pieces)
    assert {len(words) for words, _ in pieces} <= set(range(8, 33))
    assert {m for words, m in pieces if "differencing" in words} == {"difflib"}
    data = docstrings(500, 32)
    assert data.train_X.shape[1] == 32 and data.train_X.dtype == np.int64
    assert 0 <= data.train_X.min() and data.train_X.max() == 499
    assert abs(len(data.test_X) - len(data.train_X) / 4) <= 1
    counts = np.bincount(data.train_X.ravel(), minlength=500)[2:]
    assert (np.diff(counts) <= 0).all()  # frequent words have small ids
    for row, length in zip(data.test_X, (data.test_X > 0).sum(1), strict=True):
        assert (row[:length] > 0).all() and not row[length:].any()  # filled at the end


def test_a_slow_example_depends_on_its_number_alone():
    data = SlowData(12, passes=0)
    again = pickle.loads(pickle.dumps(data))  # as a spawned worker gets it
    for i in (0, 3, np.int64(11)):
        (x, y, _), (other, label, _) = data[i], again[i]
        assert (x == other).all() and y == label == i % 10
    assert (data[0][0] != data[10][0]).any()
    assert len(list(SlowData(3, passes=0))) == 3  # it ends like a sequence
    before = time.perf_counter()
    pid, begin, end = SlowData(1)[0][2]
    assert pid == os.getpid() and before <= begin < end <= time.perf_counter()


def test_stamps_become_spans_of_the_trainer_and_of_numbered_workers():
    t = Timeline()
    stamped = Stamps(t)
    for process, begin in [(os.getpid(), 1.0), (77, 2.0), (78, 3.0), (77, 4.0)]:
        begins = [t.start + begin + i for i in range(2)]
        stamped.enter(np.array([[process, b, b + 0.5] for b in begins]))
    assert [s.track for s in t.spans] == ["trainer", "worker 0", "worker 1", "worker 0"]
    np.testing.assert_allclose([s.begin for s in t.spans], [1, 2, 3, 4])
    np.testing.assert_allclose([s.end - s.begin for s in t.spans], 1.5)
