"""The parameter server on every backend: equality, staleness, and bytes."""

from __future__ import annotations

import numpy as np
import pytest
from backends.compare import arrays, assert_all_same_bits, assert_near, train_alone

from d2lmulti import ledger
from d2lmulti.backends.protocol import Backend
from d2lmulti.data import Dataset, batches
from d2lmulti.errors import InvalidInput
from d2lmulti.models.networks import Model, initial_mlp, mlp
from d2lmulti.observe.link import Link
from d2lmulti.observe.push_pull import worker_seconds
from d2lmulti.optimizers import SGD
from d2lmulti.parallel.parameter_server import ParameterServer
from d2lmulti.training.on_servers import ServerHistory, train_on_servers

SMALL = Model("small", lambda rng: initial_mlp(rng, (784, 6, 10)), mlp, mlp)
NUMBERS = 784 * 6 + 6 + 6 * 10 + 10


@pytest.fixture(scope="module")
def data() -> Dataset:
    """58 images: two batches of 29, which nothing divides."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(58, 1, 28, 28))
    y = rng.integers(0, 10, 58)
    return Dataset("noise", X, y, X[:1], y[:1], tuple("0123456789"))


def run(B: Backend, data: Dataset, workers: int = 3, **more: object) -> ServerHistory:
    settings = {"epochs": 2, "model": SMALL, "dataset": data, "backend": B.name}
    return train_on_servers(workers, 29, 0.1, **(settings | more))  # type: ignore


def weights(B: Backend, history: ServerHistory) -> list[np.ndarray]:
    return arrays(B, [history.params])[0]


@pytest.mark.dealt
@pytest.mark.parametrize("placement", ["round_robin", "greedy", "cut"])
@pytest.mark.parametrize(("workers", "servers"), [(3, 1), (4, 2), (7, 5)])
def test_synchronous_equals_one_device(
    framework: Backend, data: Dataset, workers: int, servers: int, placement: str
) -> None:
    B = framework
    history = run(B, data, workers, servers=servers, placement=placement, momentum=0.9)
    start = SMALL.initial(np.random.default_rng(0))
    mini = [
        pair
        for epoch in range(2)
        for pair in batches(data.train_X, data.train_y, 29, 0, epoch)
    ]
    _, alone, _ = train_alone(B, SMALL, start, mini, 0.1, SGD(0.9))
    assert_near(weights(B, history), alone)
    assert set(history.staleness) == {0}


def test_synchronous_bits_do_not_depend_on_the_times(B: Backend, data: Dataset) -> None:
    one = run(B, data, seconds=worker_seconds(3, 99, jitter=0.5, seed=1))
    two = run(B, data, seconds=worker_seconds(3, 99, jitter=0.5, seed=2))
    assert one.seconds != two.seconds
    assert_all_same_bits([weights(B, one)], [weights(B, two)])


@pytest.mark.parametrize(("mode", "bound"), [("async", None), ("bounded", 1)])
def test_the_same_seed_gives_the_same_bits(
    B: Backend, data: Dataset, mode: str, bound: int | None
) -> None:
    runs = [
        run(
            B, data, mode=mode, staleness=bound, servers=2,
            seconds=worker_seconds(3, 99, jitter=0.5, seed=7),
            link=Link(0.01, 1e6),
        )
        for _ in range(2)
    ]  # fmt: skip
    assert runs[0].pushes == runs[1].pushes
    assert runs[0].events == runs[1].events
    assert_all_same_bits(*([weights(B, history)] for history in runs))


def test_frameworks_agree_on_an_asynchronous_run(
    framework: Backend, reference: Backend, data: Dataset
) -> None:
    times = worker_seconds(3, 99, jitter=0.5, stragglers={1: 3.0})
    ours = run(framework, data, mode="async", seconds=times)
    theirs = run(reference, data, mode="async", seconds=times)
    assert ours.staleness == theirs.staleness
    assert_near(weights(framework, ours), weights(reference, theirs))


def test_one_asynchronous_worker_is_one_device(
    framework: Backend, data: Dataset
) -> None:
    sync, free = (run(framework, data, 1, mode=mode) for mode in ("sync", "async"))
    assert_all_same_bits([weights(framework, sync)], [weights(framework, free)])


def test_staleness_is_what_the_events_say(B: Backend, data: Dataset) -> None:
    times = worker_seconds(3, 99, jitter=0.5, stragglers={2: 4.0})
    history = run(B, data, mode="async", seconds=times)
    version, seen, expected = 0, {}, []
    for event in history.events:
        if event.kind == "pull":
            seen[event.worker] = version
        else:
            expected.append(version - seen[event.worker])
            version += 1
    assert history.staleness == expected
    assert max(expected) > 3  # the straggler's gradients are old


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_bytes_by_link(B: Backend, data: Dataset, servers: int) -> None:
    with ledger() as moved:
        history = run(B, data, servers=servers, placement="cut")
    steps, workers = 4, 3
    assert moved.bytes == 2 * steps * workers * NUMBERS * 8
    assert sum(history.server_bytes) == NUMBERS * 8
    for server, size in enumerate(history.server_bytes):
        for worker in range(workers):
            assert moved.links[worker, workers + server] == steps * size
            assert moved.links[workers + server, worker] == steps * size
    assert moved.messages == 2 * steps * workers * servers


def test_push_and_pull_by_hand(B: Backend) -> None:
    start = [B.array(np.array([1.0, 2.0])), B.array(np.array([[3.0]]))]
    server = ParameterServer(start, ["sim:0", "sim:1"], 0.5, servers=2, mode="async")
    mine, theirs = server.pull(0), server.pull(1)
    grads = [B.array(np.array([2.0, 4.0])), B.array(np.array([[6.0]]))]
    server.push(0, grads)
    assert [B.numpy(p).tolist() for p in server.weights()] == [[0.0, 0.0], [[0.0]]]
    assert [B.numpy(p).tolist() for p in theirs] == [[1.0, 2.0], [[3.0]]]
    assert [B.numpy(p).tolist() for p in mine] == [[1.0, 2.0], [[3.0]]]
    assert [B.numpy(p).tolist() for p in start] == [[1.0, 2.0], [[3.0]]]
    server.push(1, grads)
    assert [a.staleness for a in server.applied] == [0, 1]
    assert B.numpy(server.pull(0)[0]).tolist() == [-1.0, -2.0]


def test_a_worker_whose_gradient_was_dropped_does_not_wait(B: Backend) -> None:
    """Of three gradients the first two make the update."""
    server = ParameterServer([B.array(np.ones(2))], ["cpu"] * 3, 0.5, backups=1)
    for worker in range(3):
        server.pull(worker)
    for worker, version in ((2, 0), (0, 1), (1, 1)):
        server.push(worker, [B.array(np.array([1.0 + worker, 2.0]))])
        assert server.version == version
    assert B.numpy(server.weights()[0]).tolist() == [-1.0, -1.0]
    assert server.dropped == 1 and [a.worker for a in server.applied] == [0, 2]
    server.pull(1)
    server.push(1, [B.array(np.ones(2))])
    with pytest.raises(InvalidInput, match="worker 1 has to wait"):
        server.pull(1)


def test_a_backup_worker_replaces_the_straggler(B: Backend, data: Dataset) -> None:
    """The weights are those of two workers that compute the straggler's absence."""
    times = worker_seconds(3, 99, stragglers={2: 99.0})
    history = run(B, data, backups=1, seconds=times, momentum=0.9)
    model, mini, params = SMALL, [], SMALL.initial(np.random.default_rng(0))
    for epoch in range(2):
        for X, y in batches(data.train_X, data.train_y, 29, 0, epoch):
            mini += zip(np.array_split(X, 3), np.array_split(y, 3), strict=True)
    del mini[2]  # the straggler has it
    velocity = [np.zeros_like(p) for p in params]
    for step in range(5):  # 11 mini-batches: the last one finds no second
        pair = mini[2 * step : 2 * step + 2]
        both = [B.array(p) for p in params]
        for p in both:
            B.attach_grad(p)
        for X, y in pair:
            with B.record():
                logits = model.forward(B, both, B.array(X))
                loss = B.cross_entropy(logits, B.array(y)).sum() / (2 * len(y))
            B.backward([loss])
        for p, v, tensor in zip(params, velocity, both, strict=True):
            v *= 0.9
            v += B.numpy(B.grad(tensor))
            p -= 0.1 * v
    assert_near(weights(B, history), params)
    assert history.dropped == 1 and {p.worker for p in history.pushes} == {0, 1}
    assert len(history.pushes) == 10 and set(history.staleness) == {0}
    assert len(history.curve) == 6


def test_who_must_wait_is_named(B: Backend) -> None:
    start, grads = [B.array(np.ones(2))], [B.array(np.ones(2))]
    server = ParameterServer(start, ["cpu"] * 3, 0.1, mode="sync")
    with pytest.raises(InvalidInput, match="worker 1 pushes a gradient of weights it"):
        server.push(1, grads)
    server.pull(1)
    server.push(1, grads)
    with pytest.raises(InvalidInput, match="worker 1 has to wait .* 0, 2 before"):
        server.pull(1)
    server = ParameterServer(start, ["cpu"] * 2, 0.1, mode="bounded", staleness=1)
    for _ in range(2):
        server.pull(0)
        server.push(0, grads)
    with pytest.raises(InvalidInput, match="worker 0 has to wait .* 1 before"):
        server.pull(0)
    server.pull(1)
    server.push(1, grads)
    server.pull(0)
    assert server.version == 3
