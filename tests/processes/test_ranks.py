"""Processes that stay: many functions, one start; what is left when one fails."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pytest

import d2lmulti
from d2lmulti.errors import InvalidInput
from d2lmulti.processes.process_group import started
from d2lmulti.processes.ranks import Ranks
from d2lmulti.processes.spawn import ProcessFailed, state_of


class Unreadable:
    """A value that can be pickled and not read again."""

    def __reduce__(self):
        return int, ("x",)


pytestmark = pytest.mark.numpy  # NumPy's processes start in half a second


def test_the_same_processes_run_one_function_after_another() -> None:
    def who(word, *, more=0):
        group = started()
        return os.getpid(), group.local_ranks, group.size, word, more

    def summed(number):
        B, rank = d2lmulti.get_backend(), started().local_ranks[0]
        data = [B.array(np.full(3, number + rank, "float64"))]
        d2lmulti.allreduce(data, "ring")
        return B.numpy(data[0]).tolist()

    with Ranks(2, backend="numpy", timeout=60) as ranks:
        first, again = ranks(who, "a"), ranks(who, "b", more=1)
        assert [value[1:] for value in first] == [((0,), 2, "a", 0), ((1,), 2, "a", 0)]
        assert [value[1:] for value in again] == [((0,), 2, "b", 1), ((1,), 2, "b", 1)]
        assert [value[0] for value in first] == [value[0] for value in again]
        assert os.getpid() not in [value[0] for value in first]
        assert ranks(summed, 10) == [[21.0] * 3] * 2
        assert ranks(lambda: sys.modules.setdefault("left here", 1)) == [1, 1]
        assert ranks(lambda: "left here" in sys.modules) == [True, True]
    for pid, *_ in first:
        assert state_of(pid) in ("", "Z")


def test_a_failure_is_told_and_the_next_call_starts_anew() -> None:
    def fail(which):
        if started().local_ranks[0] == which:
            raise ValueError(f"rank {which} cannot")
        return os.getpid()

    with Ranks(2, backend="numpy", timeout=60) as ranks:
        before = ranks(fail, 5)
        with pytest.raises(ProcessFailed, match=r"rank 1 cannot") as told:
            ranks(fail, 1)
        assert "from rank 1" in str(told.value)
        after = ranks(fail, 5)
        assert not set(before) & set(after)


def test_a_process_that_is_gone_is_told() -> None:
    with (
        Ranks(2, backend="numpy", timeout=60) as ranks,
        pytest.raises(ProcessFailed, match="before its work was done"),
    ):
        ranks(lambda: os._exit(0) if started().local_ranks[0] else None)


def test_nothing_starts_for_nonsense() -> None:
    for wrong in ({"n": 0}, {"engine": "x"}, {"threads": 0}, {"timeout": -1}):
        with pytest.raises(InvalidInput, match="expected"):
            Ranks(**wrong)
    with pytest.raises(InvalidInput, match="a function"):
        Ranks(2)("print")


def test_the_rank_that_failed_is_named_and_not_the_one_that_was_hung_up_on() -> None:
    def fail(which):
        if started().local_ranks[0] == which:
            raise ValueError("the cause")
        time.sleep(0.3)  # so that its answer finds nobody

    with Ranks(2, backend="numpy", timeout=60) as ranks:
        for which in (0, 1):
            with pytest.raises(ProcessFailed, match=f"rank {which}(?s:.*)the cause"):
                ranks(fail, which)


def test_an_answer_that_cannot_be_unpickled_is_told_with_its_rank() -> None:
    with Ranks(2, backend="numpy", timeout=60) as ranks:
        with pytest.raises(ProcessFailed, match="unpickle from rank 0"):
            ranks(Unreadable)
        assert ranks(lambda: 1) == [1, 1]
