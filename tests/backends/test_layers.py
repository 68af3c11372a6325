"""A model as a sequence of layers is the same network as its forward function."""

from __future__ import annotations

import numpy as np
import pytest

from d2lmulti.models import MODELS
from d2lmulti.models.networks import run_layers

SEQUENCES = sorted(name for name, model in MODELS.items() if model.layers)


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_layers_in_sequence_compute_what_the_model_computes(B, name, rng):
    model = MODELS[name]
    params = [B.array(p) for p in model.initial(rng)]
    ids = rng.integers(0, 36, size=(3, 8))
    X = B.array(ids if model.vocabulary else rng.normal(size=(3, 1, 28, 28)))
    with B.pause():
        layered = run_layers(B, model.layers, params, X)
        whole = model.forward(B, params, X)
    assert np.array_equal(B.numpy(layered), B.numpy(whole))


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_layers_take_all_parameters(name, rng):
    model = MODELS[name]
    assert sum(layer.params for layer in model.layers) == len(model.initial(rng))
