"""What cannot be split over k devices is refused, by layer and dimension."""

from __future__ import annotations

import numpy as np
import pytest
from backends.test_layer_parallel import SPLITS, draw, start

from d2lmulti import devices, get_model
from d2lmulti.backends.protocol import Backend
from d2lmulti.errors import InvalidInput
from d2lmulti.models.tensor_parallel.table import get_split
from d2lmulti.models.transformer import make_transformer
from d2lmulti.parallel.tensor import gather_params, split_params, train_layers


@pytest.mark.parametrize(
    ("name", "k", "message"),
    [
        ("lenet", 3, "convolution 1 over 3 .* 20 output channels, dimension 0 of .* 0"),
        ("mlp", 3, r"dense 1 over 3 .* 256 outputs, dimension 1 .* \(784, 256\)"),
        ("deep_mlp", 3, "dense 1 over 3 devices: 3 does not divide its 64 outputs"),
        ("transformer", 5, "embedding over 5 .* does not divide its 12 characters"),
        ("alexnet", 5, "convolution 1 over 5 .* 12 output channels"),
    ],
)
def test_what_does_not_divide_is_named(
    B: Backend, name: str, k: int, message: str
) -> None:
    with pytest.raises(InvalidInput, match=f"cannot split {message}"):
        split_params(start(B, SPLITS[name]), devices(k, B.name), SPLITS[name])


def test_heads_that_do_not_divide_are_named(B: Backend) -> None:
    model = get_split(make_transformer("x", 12, width=12, heads=6, blocks=1))
    with pytest.raises(InvalidInput, match="attention 1 over 4 .* 6 heads, dimension"):
        split_params(start(B, model), devices(4, B.name), model)


def test_tokens_that_do_not_divide_are_named(framework: Backend) -> None:
    B, model = framework, SPLITS["sequence"]
    places = devices(4, B.name)
    shards = split_params(start(B, model), places, model)
    X = B.array(np.zeros((3, 6), "int64"))
    with pytest.raises(InvalidInput, match="the 18 rows of embedding over 4 devices"):
        train_layers(X, X, shards, places, 0.1, model=model)


def test_other_numbers_of_things_are_refused(B: Backend) -> None:
    model = SPLITS["mlp"]
    params, places = start(B, model), devices(2, B.name)
    with pytest.raises(InvalidInput, match="expected 4 parameters, .* got 3"):
        split_params(params[:3], places, model)
    shards = split_params(params, places, "mlp")
    with pytest.raises(InvalidInput, match="expected 4 shards a device, .* got 2"):
        gather_params([shards[0], shards[1][:2]], "mlp")
    X, y = (B.array(a) for a in draw(model, np.random.default_rng(7), "float64"))
    with pytest.raises(InvalidInput, match="per device .*, got 2 for 1"):
        train_layers(X, y, shards, places[:1], 0.1, model="mlp")


def test_a_model_without_a_split_is_refused() -> None:
    with pytest.raises(InvalidInput, match="to split by layers, got lenet_bn"):
        get_split(get_model("lenet_bn"))
    with pytest.raises(InvalidInput, match="to split by heads, got lenet"):
        get_split("lenet", sequence=True)
    by_model, by_name = get_split(get_model("lenet")), get_split("lenet")
    assert by_model.whole is by_name.whole and by_model.cuts == by_name.cuts
