"""Layers split over k devices equal one device: loss, weights, gradients, bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from backends.compare import arrays, assert_near, assert_replicas, start, train_alone

from d2lmulti import SGD, devices, ledger
from d2lmulti.backends import element_count
from d2lmulti.backends.protocol import Backend
from d2lmulti.errors import InvalidInput
from d2lmulti.models.networks import make_mlp
from d2lmulti.models.tensor_parallel import get_split
from d2lmulti.models.tensor_parallel.layers import SplitModel
from d2lmulti.models.transformer import make_transformer
from d2lmulti.parallel.tensor import gather_params, split_params, train_layers

BATCH, LENGTH = 6, 8  # 48 tokens: 2, 3 and 4 devices can share them
SIZES = {"vocabulary": 12, "context": 8, "width": 24, "heads": 12, "blocks": 2}
SPLITS: dict[str, SplitModel] = {
    "lenet": get_split("lenet"),
    "alexnet": get_split("alexnet"),
    "mlp": get_split("mlp"),
    "deep_mlp": get_split("deep_mlp"),
    "mlp_of_three": get_split(make_mlp("mlp_of_three", (784, 24, 12, 10))),
    "transformer": get_split(make_transformer("transformer", **SIZES)),
}
BY_THREE = ("alexnet", "mlp_of_three", "transformer")
CASES = [(m, k) for m in SPLITS for k in (2, 3, 4) if k != 3 or m in BY_THREE]


def draw(model: SplitModel, rng: np.random.Generator, dtype: str) -> list[np.ndarray]:
    if model.whole.vocabulary:
        ids = rng.integers(0, model.whole.vocabulary, (BATCH, LENGTH + 1))
        return [ids[:, :-1], ids[:, 1:]]
    X = rng.normal(size=(BATCH, 1, 28, 28)).astype(dtype)
    return [X, rng.integers(0, 10, BATCH)]


def first(B: Backend, model: SplitModel, dtype: str = "float64") -> list:
    return start(B, model.whole, dtype, seed=5)


def rate(model: SplitModel) -> float:
    return 0.3 if model.whole.vocabulary else 0.01


def one_device(
    B: Backend, name: str, steps: int, dtype: str, optimizer: object
) -> tuple[list[np.ndarray], list[np.ndarray], list[float]]:
    """Weights and gradients after some steps of the whole network, and the losses."""
    model, rng = SPLITS[name], np.random.default_rng(6)
    initial = [p.astype(dtype) for p in model.whole.initial(np.random.default_rng(5))]
    drawn = [draw(model, rng, dtype) for _ in range(steps)]
    losses, *found = train_alone(B, model.whole, initial, drawn, rate(model), optimizer)
    return *found, losses


def split_devices(
    B: Backend, name: str, k: int, steps: int, dtype: str, optimizer: object
) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]], list[float]]:
    """The same on k devices, put together again on each of them."""
    model, rng = SPLITS[name], np.random.default_rng(6)
    places = devices(k, B.name)
    shards = split_params(first(B, model, dtype), places, model)
    states, losses = [optimizer.init(s) for s in shards], []
    for _ in range(steps):
        X, y = (B.array(a) for a in draw(model, rng, dtype))
        (loss,) = train_layers(
            X, y, shards, places, rate(model), model=model,
            optimizer=optimizer, states=states,
        )  # fmt: skip
        losses.append(float(B.numpy(loss)))
    grads = [[B.grad(p) for p in s] for s in shards]
    found = [arrays(B, gather_params(held, model)) for held in (shards, grads)]
    return *found, losses


@pytest.fixture(scope="module")
def alone(framework: Backend) -> Callable[[str], tuple]:
    """Ten float64 steps on one device, for the model of that name, taken once."""
    return cache(lambda name: one_device(framework, name, 10, "float64", SGD(0.9)))


@pytest.mark.dealt
@pytest.mark.parametrize(("name", "k"), CASES)
def test_ten_steps_equal_one_device(
    framework: Backend, alone: Callable[[str], tuple], name: str, k: int
) -> None:
    found = split_devices(framework, name, k, 10, "float64", SGD(0.9))
    expected = alone(name)
    assert found[2] == pytest.approx(expected[2], rel=1e-12)
    keys_bias = [i for i, (_, spec) in enumerate(SPLITS[name].specs) if is_qkv(spec)]
    assert_replicas(found[0], expected[0])
    for whole in found[1]:
        for i in keys_bias:  # softmax cancels it: a gradient of rounding errors
            assert np.abs(whole[i] - expected[1][i]).max() < 1e-12
            whole[i] = expected[1][i]
        assert_near(whole, expected[1])


def is_qkv(spec: object) -> bool:
    """Tell whether a parameter is the bias of queries, keys, and values."""
    return spec.blocks == 3 and spec.dim == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "k"), [("lenet", 4), ("alexnet", 3), ("transformer", 4)]
)
def test_float32_gradients_of_one_step(framework: Backend, name: str, k: int) -> None:
    _, expected, _ = one_device(framework, name, 1, "float32", SGD())
    _, found, _ = split_devices(framework, name, k, 1, "float32", SGD())
    for whole in found:
        assert_near(whole, expected, 1e-4)


# -- what moves, and what is held ------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_bytes_of_a_transformer_equal_the_formula(B: Backend, k: int) -> None:
    tokens, moved = BATCH * LENGTH, bytes_of_a_step(B, SPLITS["transformer"], k)
    sum_of_stream = 2 * (k - 1) * tokens * SIZES["width"] * 8
    expected = {"loss forward": 6 * (k - 1) * tokens * 8}  # sums of 1 and of 2 numbers
    for layer in ("attention 1", "MLP 1", "attention 2", "MLP 2"):
        expected[f"{layer} forward"] = expected[f"{layer} backward"] = sum_of_stream
    expected["embedding forward"] = expected["head backward"] = sum_of_stream
    assert moved == {label: b for label, b in expected.items() if b}


@pytest.mark.parametrize("k", [1, 2, 4])
def test_bytes_of_lenet_equal_the_formula(B: Backend, k: int) -> None:
    one = 2 * (k - 1) * BATCH * 8  # bytes to sum one number an example
    expected = {
        "convolution 2 forward": one * 50 * 9 * 9,
        "dense 1 backward": one * 50 * 4 * 4,
        "dense 2 forward": one * 10,
    }
    moved = bytes_of_a_step(B, SPLITS["lenet"], k)
    assert moved == {label: b for label, b in expected.items() if b}


def bytes_of_a_step(B: Backend, model: SplitModel, k: int) -> dict[str, int]:
    places = devices(k, B.name)
    with ledger() as loaded:
        shards = split_params(first(B, model), places, model)
    held = sum(p.size for s in shards for p in map(B.numpy, s))
    assert loaded.loaded == held * 8 and loaded.bytes == 0
    X, y = (B.array(a) for a in draw(model, np.random.default_rng(7), "float64"))
    with ledger() as l:
        train_layers(X, y, shards, places, 0.1, model=model)
    moved = {label: b for label, b in l.by_label.items() if b}
    assert sum(moved.values()) == l.bytes  # every byte has a label
    assert l.loaded == k * sum(a.nbytes for a in map(B.numpy, (X, y)))
    return moved


@pytest.mark.parametrize(("name", "k"), [("transformer", 3), ("alexnet", 4)])
def test_every_weight_is_held_once(reference: Backend, name: str, k: int) -> None:
    model = SPLITS[name]
    shards = split_params(first(reference, model), devices(k, "numpy"), model)
    whole = first(reference, model)
    for i, (p, (_, spec)) in enumerate(zip(whole, model.specs, strict=True)):
        held = sum(element_count(s[i]) for s in shards)
        size = element_count(p)
        assert held == (size if spec.dim is not None else k * size)
    for gathered in gather_params(shards, model):
        for got, want in zip(gathered, whole, strict=True):
            assert (got.value == want.value).all()


def test_heads_that_do_not_divide_are_refused(reference: Backend) -> None:
    model = get_split(make_transformer("x", 12, width=12, heads=6, blocks=1))
    with pytest.raises(InvalidInput, match="attention 1 over 4 .* 6 heads"):
        split_params(first(reference, model), devices(4, "numpy"), model)
