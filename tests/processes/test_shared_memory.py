"""Shared memory carries plans and its own all-reduce, for every backend."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.compare import digest
from processes.staying import Staying, started_once

import d2lmulti
from d2lmulti.backends import nbytes
from d2lmulti.backends.protocol import Backend
from d2lmulti.comm.group import local_group
from d2lmulti.errors import InvalidInput
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.rounds import make_round
from d2lmulti.processes.engine import StatusTable
from d2lmulti.processes.process_group import ProcessInfo, started
from d2lmulti.processes.shared_memory import (
    CELL,
    CELLS,
    SharedMemory,
    on_host,
    semaphore,
    semaphore_name,
)
from d2lmulti.processes.spawn import Processes

# Nothing, one element, a few, more than the channels hold at once.
CAPACITY = CELLS * CELL
LENGTHS = [0, 1, 5, 3 * CAPACITY // 4 + 3]
RANKS = {"torch": 2, "mxnet": 2, "paddle": 2, "numpy": 3}


def values(rank: int, length: int, dtype: str) -> np.ndarray:
    """Make values whose sum depends on its order, with a NaN if there is room."""
    found = (np.random.default_rng(rank).normal(size=length) * 9).astype(dtype)
    if dtype.startswith("float") and rank == 1:
        found[4:5] = np.nan
    return found


def blocks(rank: int, n: int) -> np.ndarray:
    """Make a block for each rank, longer than what a channel holds at once."""
    return np.arange(n * (CAPACITY // 8 + 9.0)).reshape(n, -1) + 0.5 * rank


def calls(backend: str) -> list[tuple[str, int, str, str]]:
    found = [(a, n, "float32", "sum") for a in ALLREDUCE for n in LENGTHS[:3]]
    for algorithm in ("ring", "native"):
        found += [(algorithm, n, "float32", "sum") for n in LENGTHS]
        found += [(algorithm, 5, "float64", op) for op in ("sum", "max")]
        found += [(algorithm, 7, "int64", op) for op in ("sum", "max")]
    return found


def reduce_all(group: Any, data: list, algorithm: str, op: str) -> None:
    if algorithm == "native" and group.engine.name == "local":  # the same plans
        algorithm = "star" if nbytes(data[0]) <= 2**18 else "ring"
    d2lmulti.allreduce(data, algorithm, group, op)


def work(backend: str) -> tuple[list[str], Any]:
    B, group = d2lmulti.get_backend(), started()
    rank, n = group.local_ranks[0], group.size
    found = []
    for algorithm, length, dtype, op in calls(backend):
        x = B.array(values(rank, length, dtype))
        reduce_all(group, [x], algorithm, op)
        found.append(digest(B.numpy(x)))
    rows = B.array(blocks(rank, n))
    (whole,) = d2lmulti.allgather([B.array(np.full((rank, 2), rank))])
    (part,) = d2lmulti.reduce_scatter([rows])
    d2lmulti.alltoall([rows])
    rest = [digest(B.numpy(x)) for x in (whole, part, rows)]
    word = os.environ["D2LMULTI_FOLDER"].rpartition("-")[2]
    named = [file.name for file in Path("/dev/shm").glob(f"sem.*{word}*")]
    return found, [rest, group.engine.allgather_text("é" * rank), named]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=started_once("shared_memory", name, n))
        for name, n in RANKS.items()
    ],
)
def test_the_same_bits_as_in_one_process(
    name: str, load: Callable[[str], Backend], staying: Staying
) -> None:
    B, n = load(name), RANKS[name]
    everywhere = staying("shared_memory", name, n)(work, name)
    group, want = local_group(n), []
    for algorithm, length, dtype, op in calls(B.name):
        data = [B.array(values(rank, length, dtype)) for rank in range(n)]
        reduce_all(group, data, algorithm, op)
        want.append([digest(B.numpy(x)) for x in data])
    rows = [B.array(blocks(rank, n)) for rank in range(n)]
    wholes = d2lmulti.allgather([B.array(np.full((r, 2), r)) for r in range(n)])
    parts = d2lmulti.reduce_scatter(rows)
    d2lmulti.alltoall(rows)
    for rank, (found, (rest, texts, named)) in enumerate(everywhere):
        assert found == [all_ranks[rank] for all_ranks in want]
        here = [digest(B.numpy(x[rank])) for x in (wholes, parts, rows)]
        assert rest == here
        assert texts == ["é" * r for r in range(n)]
        assert not named  # nothing is left to be cleaned up


@pytest.mark.mxnet
@pytest.mark.xdist_group("shared_memory-mxnet-2")
def test_a_function_may_hold_mxnet_arrays(load, staying: Staying) -> None:
    x = load("mxnet").array(np.arange(3.0))
    values = staying("shared_memory", "mxnet", 2)(lambda: x * 2)
    assert [value.tolist() for value in values] == [[0, 2, 4]] * 2


def test_a_round_sends_what_was_there_before_it(B: Backend) -> None:
    """The other rank sends all of its part first, and only then takes any of ours."""
    length = 3 * CAPACITY // 4
    swap = make_round([0, 1], [1, 0], 0, length, True)
    with Processes() as group:
        folder = group.folder
        StatusTable.create(folder / "status", 2)
        one, other = (
            SharedMemory(
                ProcessInfo(rank, 2, rank, "shared_memory"),
                StatusTable(folder / "status", 2, rank),
                folder / "meeting 0",
            )
            for rank in range(2)
        )
        x = B.array(np.arange(length, dtype="float32"))
        taken = np.zeros(length, "float32")
        with ThreadPoolExecutor(1) as thread:
            exchanged = thread.submit(one.exchange, [x], [swap])
            for transfer in (
                other._send(0, np.ones(length, "float32")),
                other._receive(0, taken, None),
            ):
                for waits_for in transfer:
                    if waits_for is not None and exchanged.done():
                        exchanged.result()  # an error ends the test
            exchanged.result(timeout=30)
    np.testing.assert_array_equal(taken, np.arange(length))
    np.testing.assert_array_equal(B.numpy(x), np.arange(length) + 1.0)


def test_a_strided_view_is_refused(reference, monkeypatch) -> None:
    monkeypatch.setattr(reference, "memory", lambda x: None)
    with pytest.raises(InvalidInput), on_host(reference.array([1.0])):
        pass


def test_a_gpus_tensor_goes_by_way_of_the_host(reference, monkeypatch) -> None:
    x = reference.array([1.0, 2.0])
    monkeypatch.setattr(reference, "device_of", lambda x: "gpu:0")
    with on_host(x) as memory:
        memory += 1.0
        assert reference.numpy(x).tolist() == [1.0, 2.0]
    assert reference.numpy(x).tolist() == [2.0, 3.0]


def test_two_ends_of_a_semaphore_count_and_leave_no_name() -> None:
    with Processes() as group:
        folder = group.folder
        name = semaphore_name(folder / "meeting 7")
        one, other = (semaphore(f"{name}x", 2) for _ in range(2))
        again = semaphore(f"{name}x", 5)  # another one: the first has no name any more
        assert [other.acquire(False) for _ in range(3)] == [True, True, False]
        one.release()
        assert [other.acquire(False), one.acquire(False)] == [True, False]
        assert again.acquire(False)
        own = f"sem{name.replace('/', '.')}"
        if Path("/dev/shm").exists():
            assert list(Path("/dev/shm").glob(f"{own}*"))
    assert not list(Path("/dev/shm").glob(f"{own}*"))  # though nobody else came
