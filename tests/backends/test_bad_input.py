"""Bad input gets an answer: what was expected, what came, what to do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import d2lmulti
from d2lmulti import SGD, allreduce, devices, get_params, split_batch, train_batch
from d2lmulti.backends.protocol import Backend, Tensor
from d2lmulti.errors import D2LMultiError


def ones(B: Backend, *shape: int, dtype: str = "float64") -> Tensor:
    return B.array(np.ones(shape, dtype))


def labels(B: Backend, n: int) -> Tensor:
    return B.array(np.zeros(n, "int64"))


def replicas(B: Backend, k: int) -> list[list[Tensor]]:
    model = d2lmulti.get_model("mlp")
    start = [B.array(p) for p in model.initial(np.random.default_rng(0))]
    return [get_params(start, f"sim:{i}") for i in range(k)]


def step(B: Backend, examples: int = 4, k: int = 2, **settings: object) -> object:
    X, y = ones(B, examples, 1, 28, 28), labels(B, examples)
    mlp = d2lmulti.get_model("mlp")
    places = [f"sim:{i}" for i in range(k)]
    return train_batch(X, y, replicas(B, 2), places, 0.1, model=mlp, **settings)


def quick(B: Backend, **settings: object) -> object:
    return d2lmulti.train(
        **{"backend": B.name, "model": "mlp", "epochs": 1, **settings}
    )


def overlapping(x: Tensor) -> list[Tensor]:
    return [x[0:4], x[2:6]]


def whole_and_half(x: Tensor) -> list[Tensor]:
    return [x[3:6], x]


def gradient_twice(B: Backend) -> list[Tensor]:
    p = replicas(B, 1)[0][0]
    return [B.grad(p), B.grad(p)]  # MXNet and Paddle make a new handle each time


def trained(B: Backend, k: int, examples: int, labelled: int) -> float:
    X, y = np.ones((examples, 1, 28, 28)), np.zeros(labelled, "int64")
    places = [f"sim:{i}" for i in range(k)]
    return d2lmulti.evaluate(replicas(B, 2), X, y, places)


# cause -> (what is done, a part of what was expected, of what came, of what to do)
CAUSES: dict[str, tuple[Callable[[Backend], object], str, str, str]] = {
    "no devices": (
        lambda B: devices(0, B.name), "as devices", "got 0", "devices(1)",
    ),
    "negative number of devices": (
        lambda B: devices(-2, B.name), "as devices", "got -2", "devices(1)",
    ),
    "half a device": (
        lambda B: devices(1.5, B.name), "as devices", "got 1.5", "devices(1)",
    ),
    "True devices": (
        lambda B: devices(True, B.name), "as devices", "got True", "devices(1)",
    ),
    "more real GPUs than there are": (
        lambda B: devices(999, B.name, simulate=False), "at most", "got 999", "fewer",
    ),
    "a GPU with a negative number": (
        lambda B: d2lmulti.try_gpu(-1, B.name),
        "whole number", "got -1", "number of a GPU",
    ),
    "a device that is nonsense": (
        lambda B: get_params([ones(B, 2)], "tpu:0"), "'gpu:0'", "'tpu:0'", "doctor",
    ),
    "a device that is a number": (
        lambda B: get_params([ones(B, 2)], 0), "'gpu:0'", "got 0", "doctor",
    ),
    "a device that is None": (
        lambda B: get_params([ones(B, 2)], None), "'gpu:0'", "None", "doctor",
    ),
    "a GPU that is not there": (
        lambda B: get_params([ones(B, 2)], "gpu:999"),
        "a GPU that", "gpu:999", "devices(n)",
    ),
    "no parameters": (
        lambda B: get_params([], "cpu"),
        "list of parameter tensors", "an empty one", "B.array",
    ),
    "parameters that are one tensor": (
        lambda B: get_params(ones(B, 2), "cpu"), "list of parameter", "got", "B.array",
    ),
    "parameters that are NumPy arrays": (
        lambda B: get_params([np.ones(2)], "cpu"),
        "a tensor of torch", "numpy.ndarray", "array(values, device)",
    ),
    "an unknown backend": (
        lambda B: d2lmulti.get_backend("jax"), "one of torch", "'jax'", "pass one",
    ),
    "an unknown algorithm": (
        lambda B: allreduce([ones(B, 2), ones(B, 2)], "snail"),
        "one of star", "'snail'", "as algorithm",
    ),
    "an all-reduce of nothing": (
        lambda B: allreduce([]), "tensors, one per device", "empty", "rank 0",
    ),
    "an all-reduce of one tensor": (
        lambda B: allreduce(ones(B, 2)), "a list", "got", "pass [tensor",
    ),
    "shapes that differ": (
        lambda B: allreduce([ones(B, 2), ones(B, 3)]),
        "same shape", "(2,)", "every rank must",
    ),
    "dtypes that differ": (
        lambda B: allreduce([ones(B, 2), ones(B, 2, dtype="float32")]),
        "dtype on every rank", "float32", "every rank must",
    ),
    "frameworks that differ": (
        lambda B: allreduce([ones(B, 2), np.ones(2)]),
        "a tensor of torch", "numpy.ndarray", "array(values, device)",
    ),
    "one gradient twice": (
        lambda B: allreduce(gradient_twice(B)),
        "of its own", "share memory", "copy",
    ),
    "one tensor twice": (
        lambda B: allreduce([ones(B, 2)] * 2), "of its own", "share memory", "copy",
    ),
    "views that overlap": (
        lambda B: allreduce(overlapping(ones(B, 6))),
        "of its own", "entries 0 and 1", "share memory",
    ),
    "a view of the whole": (
        lambda B: allreduce(whole_and_half(ones(B, 6))),
        "of its own", "entries 0 and 1", "share memory",
    ),
    "a batch split over nothing": (
        lambda B: split_batch(ones(B, 4, 2), labels(B, 4), []),
        "a list of devices", "empty", "devices(1)",
    ),
    "X and y of different lengths": (
        lambda B: split_batch(ones(B, 4, 2), labels(B, 5), ["cpu"]),
        "same number of examples", "(5,)", "same batch",
    ),
    "an X without examples": (
        lambda B: split_batch(B.array(np.float64(1)), labels(B, 1), ["cpu"]),
        "same number of examples", "()", "same batch",
    ),
    "fewer examples than devices": (
        lambda B: split_batch(ones(B, 3, 2), labels(B, 3), ["cpu"] * 4),
        "cannot split 3 examples", "over 4 devices", "fewer devices",
    ),
    "an empty batch": (
        lambda B: split_batch(ones(B, 0, 2), labels(B, 0), ["cpu"]),
        "cannot split 0 examples", "over 1 device;", "at least 1 example ",
    ),
    "a step with fewer replicas than devices": (
        lambda B: step(B, k=3),
        "one list of tensors per device", "got 2", "get_params",
    ),
    "a step with too few examples": (
        lambda B: step(B, examples=1), "cannot split 1", "2 devices", "fewer devices",
    ),
    "momentum without velocities": (
        lambda B: step(B, optimizer=SGD(0.9)), "one velocity", "got 0", "start(params)",
    ),
    "a momentum of 1": (
        lambda B: SGD(1.0), "at least 0", "got 1.0", "below 1",
    ),
    "an unknown model": (
        lambda B: quick(B, model="vgg"), "one of lenet", "'vgg'", "as model",
    ),
    "an unknown data set": (
        lambda B: quick(B, dataset="imagenet"), "digits", "'imagenet'", "fashion_mnist",
    ),
    "a learning rate of 0": (
        lambda B: quick(B, lr=0), "above 0", "got 0", "try 0.05",
    ),
    "a batch of 0": (
        lambda B: quick(B, batch_size=0), "at least 1", "0", "batch",
    ),
    "no epochs": (
        lambda B: quick(B, epochs=0), "whole number", "got 0", "as epochs",
    ),
    "an unknown dtype": (
        lambda B: quick(B, dtype="float16"), "one of float32", "'float16'", "dtype",
    ),
    "a last batch smaller than the devices": (
        lambda B: quick(B, num_gpus=30, batch_size=128),
        "last batch of every epoch", "fewer than 30", "another batch size",
    ),
    "an evaluation with fewer replicas than devices": (
        lambda B: trained(B, 3, 6, 6), "one list of tensors", "got 2", "3 devices",
    ),
    "an evaluation with fewer labels than examples": (
        lambda B: trained(B, 2, 6, 5), "as many labels", "5 labels", "6 examples",
    ),
}  # fmt: skip


def test_views_beside_each_other_are_summed(B: Backend) -> None:
    x = B.array(np.arange(6.0))
    allreduce([x[0:3], x[3:6]])
    assert B.numpy(x).tolist() == [3.0, 5.0, 7.0] * 2


def test_columns_that_interleave_are_refused_or_summed(B: Backend) -> None:
    X = B.array(np.arange(12.0).reshape(3, 4))
    columns = [X[:, 0:3], X[:, 1:4]]
    before = B.numpy(columns[0]) + B.numpy(columns[1])
    try:
        allreduce(columns)
    except D2LMultiError:
        assert B.numpy(X).tolist() == np.arange(12.0).reshape(3, 4).tolist()
    else:  # MXNet's are copies
        assert (B.numpy(columns[0]) == before).all()


@pytest.mark.parametrize("cause", CAUSES)
def test_the_message_says_what_to_do(B: Backend, cause: str) -> None:
    act, expected, came, advice = CAUSES[cause]
    with pytest.raises(D2LMultiError) as caught:
        act(B)
    message = str(caught.value)
    for part in (expected, came, advice):
        assert part in message, f"{part!r} is missing in: {message}"


def test_there_are_at_least_25_causes() -> None:
    assert len(CAUSES) >= 25
