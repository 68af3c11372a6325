"""What one process computes, n processes compute too: bit for bit, on every engine.

Each engine is started once for each number of ranks and then asked for everything.
Four processes of NumPy train in all ways, the others in each way to split.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from backends.compare import assert_near
from processes.asked import A_FEW, CASES, everything, train_all
from processes.staying import Staying, started_once

from d2lmulti.backends.protocol import Backend

# Engine, backend, ranks -> what they train.
GROUPS = {
    ("torch", "torch", 4): [*A_FEW, "data, native", "mesh, tokens and experts"],
    ("paddle", "paddle", 4): [*A_FEW, "data, native"],
    ("shared_memory", "torch", 2): [*A_FEW],
    ("shared_memory", "mxnet", 2): [*A_FEW],
    ("shared_memory", "paddle", 2): [*A_FEW],
    ("shared_memory", "numpy", 4): [*CASES],
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(group, id="-".join(map(str, group)), marks=started_once(*group))
        for group in GROUPS
    ],
)
def group(
    request: pytest.FixtureRequest, load: Callable[[str], Backend]
) -> tuple[str, str, int]:
    load(request.param[1])
    return request.param


@pytest.fixture(scope="module")
def run(group: tuple[str, str, int], staying: Staying) -> list[dict]:
    return staying(*group)(everything, GROUPS[group])


@pytest.fixture(scope="module")
def in_process() -> Callable[[int, str, str], tuple]:
    """`in_process(n, backend, case)`: the same training in this process."""
    return cache(lambda n, backend, case: train_all(n, backend, [case])[case])


def test_every_collective_has_the_bits_of_one_process(run: list[dict]) -> None:
    for found in run:
        assert found["count"] >= 35
        assert found["dtypes"] >= 70
        assert found["differ"] == []


def test_messages_and_words_arrive(
    run: list[dict], group: tuple[str, str, int]
) -> None:
    n = group[2]
    for rank, found in enumerate(run):
        left = np.arange(6.0).reshape(2, 3) * ((rank - 1) % n)
        assert found["arrived"] == left.tolist()
        assert found["told"] == [f"rang {r} é" for r in range(n)]
        assert f"as many devices as the {n} processes" in found["refused"]


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux about its sockets")
def test_other_machines_cannot_connect(run: list[dict]) -> None:
    assert [found["reachable"] for found in run] == [[]] * len(run)


def test_sub_groups_are_those_of_one_process(
    run: list[dict], group: tuple[str, str, int]
) -> None:
    n = group[2]
    for rank, value in enumerate(run):
        found = value["mesh"]
        assert found["differ"] == [] and found["count"] >= 35
        row, column = rank - rank % (n // 2), rank % (n // 2)
        down = [column, column + n // 2]  # along data, then along tensor
        lines = [down, [*range(row, row + n // 2)]]
        for line, told, sent in zip(lines, found["told"], found["sent"], strict=True):
            assert told == [f"rang {r} é" for r in line]
            before = line[: line.index(rank) + 1]
            assert sent == [sum(10.0**i * r for i, r in enumerate(before[::-1]))]
        assert found["ends"] == ([[0, n - 1]] if rank in (0, n - 1) else [])
        parts, product, again = found["refused"]
        assert (
            "the same parts on every rank, got the parts [[0], [1]] on rank 0" in parts
        )
        assert f"the {n} devices of the group, got data={n + 1}" in product
        assert "split the whole group" in again


def test_attention_has_the_bits_of_one_process(run: list[dict]) -> None:
    for found in run:
        assert found["tokens"]["differ"] == []
        assert found["tokens"]["count"] == 3 * 4


def test_the_engines_own_all_reduce(run: list[dict]) -> None:
    n = len(run)
    every = np.float64([[rank, 10 - rank, 1] for rank in range(n)])
    for found in run:
        want = [every.sum(0), every.max(0), every.sum(0) / n]
        assert found["native"] == [x.tolist() for x in want]


def test_n_processes_train_as_n_devices_and_as_one(
    run: list[dict], group: tuple[str, str, int], in_process: Callable
) -> None:
    for case in GROUPS[group]:
        check_training(run, group, in_process, case)


def check_training(
    run: list[dict], group: tuple[str, str, int], in_process: Callable, case: str
) -> None:
    _, backend, n = group
    here, replicas, _ = in_process(n, backend, case)
    (losses, _, _, _), (alone,), _ = in_process(1, backend, case)
    for rank, found in enumerate(run):
        history, (weights,), seconds = found["trained"][case]
        assert seconds == run[0]["trained"][case][2]  # one history for all
        first = run[0]["trained"][case][1][0]
        if case != "data, statistics":  # those are each replica's own
            assert all((a == b).all() for a, b in zip(weights, first, strict=True))
        if case == "data, native":
            assert history[1:] == here[1:]
            assert history[0] == pytest.approx(here[0], rel=1e-12)
        else:  # bit for bit what n devices of one process do
            assert history == here
            theirs = replicas[rank % len(replicas)]
            assert all((a == b).all() for a, b in zip(weights, theirs, strict=True))
        if case == "data, statistics":
            continue  # each device normalizes by its own part: not one device's
        assert history[0] == pytest.approx(losses, rel=1e-12)
        assert_near(weights, alone)
