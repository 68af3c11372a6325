"""The order of pushes and pulls: who may go when, checked on the events alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.observe.link import Link
from d2lmulti.observe.push_pull import Event, push_pull_events, worker_seconds


def run(mode: str, workers: int, rounds: int, **more: object) -> list[Event]:
    seed = more.pop("seed", 0)
    batches = workers * rounds
    seconds = worker_seconds(workers, batches, jitter=0.7, seed=seed)  # type: ignore
    return list(push_pull_events(mode, seconds, batches, **more))  # type: ignore


CASES = st.tuples(st.integers(1, 7), st.integers(1, 6), st.integers(0, 99))


@given(CASES, st.sampled_from(["sync", "async", "bounded"]), st.integers(0, 3))
def test_every_batch_is_pulled_and_pushed_once_in_order_of_time(
    case: tuple[int, int, int], mode: str, staleness: int
) -> None:
    workers, rounds, seed = case
    bound = staleness if mode == "bounded" else None
    events = run(
        mode, workers, rounds, seed=seed, staleness=bound,
        server_bytes=[10, 3], link=Link(0.1, 7),
    )  # fmt: skip
    assert [e.seconds for e in events] == sorted(e.seconds for e in events)
    for kind in ("pull", "push"):
        batches = [e.batch for e in events if e.kind == kind]
        assert sorted(batches) == list(range(workers * rounds))
    for worker in range(workers):
        own = [(e.kind, e.batch) for e in events if e.worker == worker]
        assert [kind for kind, _ in own] == ["pull", "push"] * (len(own) // 2)
        assert [b for _, b in own[::2]] == [b for _, b in own[1::2]]


@given(CASES, st.integers(0, 3))
def test_nobody_is_further_ahead_than_the_bound(
    case: tuple[int, int, int], staleness: int
) -> None:
    workers, rounds, seed = case
    done = [0] * workers
    for event in run("bounded", workers, rounds, seed=seed, staleness=staleness):
        if event.kind == "push":
            done[event.worker] += 1
        else:
            assert done[event.worker] - min(done) <= staleness


@given(CASES)
def test_sync_pulls_only_when_all_have_pushed(case: tuple[int, int, int]) -> None:
    workers, rounds, seed = case
    events = run("sync", workers, rounds, seed=seed)
    done = [0] * workers
    for event in events:
        if event.kind == "push":
            done[event.worker] += 1
        else:
            assert len(set(done)) == 1
            assert event.batch == done[0] * workers + event.worker


@given(CASES, st.integers(0, 6))
def test_an_update_takes_the_first_gradients(
    case: tuple[int, int, int], backups: int
) -> None:
    """A worker pulls each version once; with backups nobody waits for the last."""
    workers, rounds, seed = case
    backups = min(backups, workers - 1)
    version, fresh, pulled = 0, 0, [-1] * workers
    for event in run("sync", workers, rounds, seed=seed, backups=backups):
        if event.kind == "pull":
            assert pulled[event.worker] < version
            pulled[event.worker] = version
        elif pulled[event.worker] == version:
            fresh += 1
            if fresh == workers - backups:
                version, fresh = version + 1, 0
    assert version >= rounds - (backups > 0)


def test_a_bound_that_nobody_reaches_is_no_bound() -> None:
    assert run("bounded", 4, 5, staleness=20) == run("async", 4, 5)


def test_times_by_hand() -> None:
    """Two workers, one server, 10 bytes at 10 bytes/s, latency 0.5, 2 s of work."""
    seconds = np.full((2, 2), 2.0)
    events = list(
        push_pull_events("async", seconds, 2, server_bytes=[10], link=Link(0.5, 10))
    )
    # Worker 1 waits a second until the server's link has sent to worker 0.
    assert events == [
        Event(0.0, "pull", 0, 0),
        Event(0.0, "pull", 1, 1),
        Event(5.0, "push", 0, 0),  # 1 + 0.5 pull, 2 work, 1 + 0.5 push
        Event(6.0, "push", 1, 1),
    ]


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_servers_share_the_queue(servers: int) -> None:
    """Four workers pull 40 bytes at once: 4 s through one link, 1 s through four."""
    events = list(
        push_pull_events(
            "sync", np.full((4, 1), 1e-9), 4,
            server_bytes=[40 // servers] * servers, link=Link(0, 40),
        )
    )  # fmt: skip
    first = min(e.seconds for e in events if e.kind == "push")
    assert max(e.seconds for e in events) >= 4 / servers
    assert first >= 2  # a worker's own link carries 40 bytes in and 40 out
    if servers == 4:
        assert max(e.seconds for e in events) == pytest.approx(2)


def test_a_straggler_takes_its_factor() -> None:
    plain = worker_seconds(3, 5, 2.0, jitter=0.1, seed=1)
    slow = worker_seconds(3, 5, 2.0, jitter=0.1, stragglers={1: 4.0}, seed=1)
    assert slow.shape == (3, 5)
    assert (slow / plain == np.array([[1.0], [4.0], [1.0]])).all()
