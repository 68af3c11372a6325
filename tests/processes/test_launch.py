"""Starting processes: results, output, failures, time-outs, and who is left behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import d2lmulti
from d2lmulti.backends.protocol import Backend
from d2lmulti.comm.engine import started
from d2lmulti.comm.launch import launch
from d2lmulti.plans.allreduce import ALLREDUCE


def sums(lengths: list[int], dtypes: list[str]) -> list[Any]:
    """All-reduce on every rank, by every algorithm; called in each process."""
    B, group = d2lmulti.get_backend(), started()
    rank, found = group.local_ranks[0], []
    print("rank", rank)
    for algorithm in ALLREDUCE:
        for length in lengths:
            for dtype in dtypes:
                x = B.array(values(rank, length, dtype))
                d2lmulti.allreduce([x], algorithm)
                found.append(B.numpy(x))
    return found


def values(rank: int, length: int, dtype: str) -> np.ndarray:
    return (np.random.default_rng(rank).normal(size=length) * 9).astype(dtype)


@pytest.mark.parametrize("n", [2, 3])
def test_a_plan_gives_the_same_bits_as_in_one_process(B: Backend, n: int) -> None:
    lengths, dtypes = [0, 1, 5, 100_003], ["float32", "float64", "int64"]
    run = launch(sums, n, lengths, dtypes, backend=B.name)
    assert repr(run) == "\n".join(f"rank {rank}: rank {rank}" for rank in range(n))
    want = []
    for algorithm in ALLREDUCE:
        for length in lengths:
            for dtype in dtypes:
                data = [B.array(values(rank, length, dtype)) for rank in range(n)]
                d2lmulti.allreduce(data, algorithm)
                want.append(B.numpy(data[0]))
    for got in run.values:
        assert [x.tobytes() for x in got] == [x.tobytes() for x in want]
