"""Wrong input that would train wrongly in silence is an error, on every backend.

Each case names what is wrong, and facts that the message must hold.
"""

from __future__ import annotations

import numpy as np
import pytest

import d2lmulti
from d2lmulti import SGD, allgather, allreduce, get_params, split_batch, train_batch
from d2lmulti.backends.protocol import Backend, Tensor
from d2lmulti.comm.collectives import run_plan
from d2lmulti.comm.group import local_group
from d2lmulti.errors import D2LMultiError
from d2lmulti.models.networks import make_mlp
from d2lmulti.plans.rounds import make_round
from d2lmulti.training.loop import evaluate

SMALL = make_mlp("small", (6, 4, 3))


def ones(B: Backend, *shape: int, dtype: str = "float64") -> Tensor:
    return B.array(np.ones(shape, dtype))


def labels(B: Backend, n: int, value: int = 0) -> Tensor:
    return B.array(np.full(n, value, "int64"))


def replicas(B: Backend, k: int) -> list[list[Tensor]]:
    start = [B.array(p) for p in SMALL.initial(np.random.default_rng(0))]
    return [get_params(start, "cpu") for _ in range(k)]


def step(B: Backend, k: int = 2, **changes: object) -> object:
    given = {
        "X": ones(B, 4, 6), "y": labels(B, 4), "device_params": replicas(B, k),
        "devices": ["cpu"] * 2, "lr": 0.1, "model": SMALL,
    }  # fmt: skip
    return train_batch(**{**given, **changes})  # type: ignore[arg-type]


def same_replica_twice(B: Backend) -> object:
    return step(B, device_params=replicas(B, 1) * 2)


def same_velocity_twice(B: Backend) -> object:
    params, momentum = replicas(B, 2), SGD(0.9)
    states = [momentum.init(params[0])] * 2
    return step(B, device_params=params, optimizer=momentum, states=states)


def evaluation(B: Backend, k: int, labeled: int) -> float:
    X, y = np.zeros((6, 6)), np.zeros(labeled, "int64")
    return evaluate(replicas(B, 2), X, y, ["cpu"] * k, model=SMALL)


def back(B: Backend, *dys: object, dtype: str = "float64") -> None:
    x = ones(B, 2)
    B.attach_grad(x)
    with B.record():
        y = x * x
    B.backward([y], [B.array(np.asarray(dy, dtype)) for dy in dys])


def not_recorded(B: Backend) -> None:
    B.backward([ones(B, 2) * 2])


def in_a_graph(B: Backend) -> None:
    x = ones(B, 2)
    B.attach_grad(x)
    with B.record():
        y = x * x
        B.attach_grad(y)
    if B.name == "mxnet":  # it cannot tell, and cuts the graph there
        raise D2LMultiError


def beyond_the_vector(B: Backend) -> None:
    rounds = [make_round(0, 1, 1, 2, add=True)]
    run_plan([ones(B, 2), ones(B, 2)], rounds, local_group(2))


# what is wrong -> (a call, what its message holds)
CASES = {
    "shapes that differ": (
        lambda B: allreduce([ones(B, 2), ones(B, 3)]), "(2,)", "(3,)", "rank 1"
    ),
    "dtypes that differ": (
        lambda B: allreduce([ones(B, 2), ones(B, 2, dtype="float32")]), "float32",
    ),
    "rows that differ": (
        lambda B: allgather([ones(B, 2, 3), ones(B, 2, 4)]), "(3,)", "(4,)",
    ),
    "one tensor twice": (lambda B: allreduce([ones(B, 2)] * 2), "twice"),
    "an unknown operation": (
        lambda B: allreduce([ones(B, 2), ones(B, 2)], op="prod"), "'prod'",
    ),
    "an unknown algorithm": (
        lambda B: allreduce([ones(B, 2), ones(B, 2)], "snail"), "'snail'",
    ),
    "a root that is no rank": (
        lambda B: d2lmulti.broadcast([ones(B, 2), ones(B, 2)], root=-1), "-1",
    ),
    "rows that the ranks do not divide": (
        lambda B: d2lmulti.alltoall([ones(B, 3, 2), ones(B, 3, 2)]), "3",
    ),
    "a plan that leaves the vector": (beyond_the_vector, "<= 2"),
    "a list of another length than the group": (
        lambda B: allreduce([ones(B, 5)], group=local_group(2)), "2", "got 1",
    ),
    "a mean of integers": (
        lambda B: d2lmulti.reduce_scatter([labels(B, 2), labels(B, 2)], op="mean"),
        "int64",
    ),
    "a gradient of another shape": (lambda B: back(B, [[1.0, 2.0]]), "(1, 2)"),
    "a gradient that is shorter": (lambda B: back(B, [1.0]), "(1,)", "(2,)"),
    "a gradient of another dtype": (
        lambda B: back(B, [1, 1], dtype="float32"), "float32", "float64",
    ),
    "two gradients of one tensor": (lambda B: back(B, [1, 1], [1, 1]), "(2,)"),
    "a gradient that nobody collects": (lambda B: B.grad(ones(B, 2)), "attach_grad"),
    "a backward pass without a graph": (not_recorded, "record()"),
    "a gradient attached inside a graph": (in_a_graph,),
    "an unknown backend": (lambda B: d2lmulti.get_backend("jax"), "'jax'"),
    "a GPU that is not there": (
        lambda B: get_params([ones(B, 2)], "gpu:999"), "gpu:999",
    ),
    "parameters that are integers": (
        lambda B: get_params([labels(B, 2)], "cpu"), "int64",
    ),
    "more labels than examples": (
        lambda B: split_batch(ones(B, 4, 2), labels(B, 5), ["cpu"]), "(5,)",
    ),
    "labels that are fractions": (lambda B: step(B, y=ones(B, 4)), "float64"),
    "a label of no class": (lambda B: step(B, y=labels(B, 4, 3)), "0 to 2"),
    "a label below 0": (lambda B: step(B, y=labels(B, 4, -1)), "-1"),
    "fewer examples than devices": (
        lambda B: split_batch(ones(B, 3, 2), labels(B, 3), ["cpu"] * 4),
        "3 examples", "4 devices",
    ),
    "fewer replicas than devices": (
        lambda B: step(B, device_params=replicas(B, 1)), "got 1",
    ),
    "one replica twice": (same_replica_twice, "twice"),
    "one velocity twice": (same_velocity_twice, "twice"),
    "momentum without velocities": (
        lambda B: step(B, optimizer=SGD(0.9)), "got 0", "init(params)",
    ),
    "a momentum of 1": (lambda B: SGD(1.0), "1.0"),
    "a negative learning rate": (lambda B: step(B, lr=-0.1), "-0.1"),
    "a learning rate that is nan": (lambda B: step(B, lr=float("nan")), "nan"),
    "a batch of -4 targets": (lambda B: step(B, n=-4), "-4"),
    "an evaluation with fewer labels": (lambda B: evaluation(B, 2, 5), "5", "6"),
    "an evaluation of too few replicas": (lambda B: evaluation(B, 3, 6), "got 2"),
}  # fmt: skip


# The framework's own error is enough where it raises one.
BY_THE_FRAMEWORK = ("a backward",)


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_is_an_error(B: Backend, case: str) -> None:
    act, *facts = CASES[case]
    own = case.startswith(BY_THE_FRAMEWORK)
    with pytest.raises(Exception if own else D2LMultiError) as caught:
        act(B)
    if own:
        return
    missing = [fact for fact in facts if fact not in str(caught.value)]
    assert not missing, str(caught.value)


def test_views_beside_each_other_are_summed(B: Backend) -> None:
    x = B.array(np.arange(6.0))
    allreduce([x[0:3], x[3:6]])
    assert B.numpy(x).tolist() == [3.0, 5.0, 7.0] * 2
