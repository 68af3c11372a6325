"""TF-Slim's deployment: where things live, and a step that equals one device."""

from __future__ import annotations

import numpy as np
import pytest
from backends.compare import assert_near, start, train_alone

from d2lmulti import get_params, ledger
from d2lmulti.backends.protocol import Backend
from d2lmulti.models.networks import Model, initial_mlp, mlp
from d2lmulti.optimizers import SGD
from d2lmulti.parallel.parameter_server import DeploymentConfig, train_clones

SMALL = Model("small", lambda rng: initial_mlp(rng, (784, 6, 10)), mlp, mlp)
SIZES = [784 * 6, 6, 6 * 10, 10]


def batch(B: Backend, n: int) -> tuple[object, object]:
    rng = np.random.default_rng(4)
    return B.array(rng.normal(size=(n, 1, 28, 28))), B.array(rng.integers(0, 10, n))


def params_of(B: Backend) -> list:
    return get_params(start(B, SMALL), "cpu")


def step(B: Backend, n: int, clones: int, **more: object) -> tuple[list, float]:
    params, loss = params_of(B), 0.0
    config = DeploymentConfig(clones, backend=B.name)
    optimizer = SGD(0.9)
    state = optimizer.init(params)
    for _ in range(3):
        loss = train_clones(
            *batch(B, n), params, config, 0.1,
            model=SMALL, optimizer=optimizer, state=state, **more,
        )  # fmt: skip
    return [B.numpy(p) for p in params], loss


def alone(B: Backend, n: int) -> tuple[list, float]:
    initial = SMALL.initial(np.random.default_rng(0))
    batches = [tuple(map(B.numpy, batch(B, n)))] * 3
    losses, weights, _ = train_alone(B, SMALL, initial, batches, 0.1, SGD(0.9))
    return weights, losses[-1] / n


@pytest.mark.dealt
@pytest.mark.parametrize("clones", [1, 2, 4])
@pytest.mark.parametrize("scale", ["clones", "examples"])
def test_even_shards_equal_one_device(
    framework: Backend, clones: int, scale: str
) -> None:
    got, loss = step(framework, 28, clones, scale=scale)
    want, expected = alone(framework, 28)
    assert_near(got, want)
    assert loss == pytest.approx(expected, rel=1e-12)


def test_uneven_shards_need_the_number_of_examples(framework: Backend) -> None:
    want, expected = alone(framework, 29)
    ours, loss = step(framework, 29, 4, scale="examples")
    theirs, their_loss = step(framework, 29, 4, scale="clones")
    assert_near(ours, want)
    assert loss == pytest.approx(expected, rel=1e-12)
    # A mean of means is another loss.
    assert max(np.abs(p - q).max() for p, q in zip(theirs, want, strict=True)) > 1e-4
    assert their_loss != pytest.approx(expected, rel=1e-6)


@pytest.mark.dealt
@pytest.mark.parametrize("clones", [1, 2, 4])
def test_regularisation_counts_once(framework: Backend, clones: int) -> None:
    B, config = framework, DeploymentConfig(clones, backend=framework.name)
    first = params_of(B)
    after = []
    for decay in (0.5, 0.0):
        params = params_of(B)
        train_clones(*batch(B, 8), params, config, 0.1, model=SMALL, weight_decay=decay)
        after.append(params)
    for got, without, p in zip(*after, first, strict=True):
        expected = B.numpy(without) - 0.1 * 0.5 * B.numpy(p)
        assert np.abs(B.numpy(got) - expected).max() < 1e-12


@pytest.mark.parametrize("tasks", [0, 1, 3])
def test_bytes_of_a_step(B: Backend, tasks: int) -> None:
    config = DeploymentConfig(2, num_ps_tasks=tasks, backend=B.name)
    with ledger() as moved:
        train_clones(*batch(B, 8), params_of(B), config, 0.1, model=SMALL)
    assert moved.bytes == 2 * 2 * sum(SIZES) * 8
    for task in range(max(tasks, 1)):
        size = sum(SIZES[task :: max(tasks, 1)]) * 8
        for clone in range(2):
            assert moved.links[clone, 2 + task] == moved.links[2 + task, clone] == size


def test_clones_on_the_cpu_move_nothing(B: Backend) -> None:
    config = DeploymentConfig(2, clone_on_cpu=True, backend=B.name)
    with ledger() as moved:
        train_clones(*batch(B, 8), params_of(B), config, 0.1, model=SMALL)
    assert moved.bytes == 0
    assert {str(config.clone_device(i)) for i in range(2)} == {"cpu"}


def test_where_things_live(B: Backend) -> None:
    config = DeploymentConfig(num_clones=2, backend=B.name)
    assert str(config.variables_device()) == str(config.inputs_device()) == "cpu"
    assert str(config.optimizer_device()) == "cpu"
    assert [config.clone_device(i).device.index for i in range(2)] == [0, 1]
    assert config.clone_device(0).device.kind in ("sim", "gpu")
    config = DeploymentConfig(
        1, True, replica_id=2, num_replicas=3, num_ps_tasks=2, backend=B.name
    )
    assert [str(config.variables_device(i)) for i in range(3)] == [
        "ps:0 cpu",
        "ps:1 cpu",
        "ps:0 cpu",
    ]
    assert str(config.clone_device(0)) == str(config.inputs_device()) == "worker:2 cpu"
