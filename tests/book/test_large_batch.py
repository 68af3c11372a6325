"""The stored runs of the chapter large_batch are those of the page's own code."""

from __future__ import annotations

import json
from types import FunctionType

import large_batch
import numpy as np
import pytest


@pytest.fixture(scope="module")
def code():
    return large_batch.page_code()


@pytest.fixture(scope="module")
def stored():
    return json.loads(large_batch.FILE.read_text(encoding="utf-8"))


def test_every_run_is_stored_with_all_its_seeds(code, stored):
    assert set(stored["runs"]) == {name for name, _ in large_batch.runs(code)}
    for rows in stored["runs"].values():
        assert len(rows) == large_batch.SEEDS >= 5
        assert np.isfinite(rows).all()


WITHIN = {  # points of the error, or a share of the examples
    "normalized/gradual/64": {"abs": 1.0},
    "adam/0.016/64": {"abs": 1.0},
    "goal/1/64": {"rel": 0.1},
}


@pytest.mark.parametrize("name", WITHIN)
def test_a_stored_run_is_what_the_page_gives(code, stored, name):
    wanted = dict(large_batch.runs(code))
    here = wanted[name](range(5))
    # Rounding differs between machines, and training makes it grow: not to the digit.
    want = pytest.approx(np.mean(stored["runs"][name][:5]), **WITHIN[name])
    assert np.mean(here) == want


def test_the_noise_scale_does_not_depend_on_the_number_of_images(code):
    """Gradients of 8 images with |g|^2 = 1 and a covariance whose trace is 400."""
    seeds, elements, trace = 500, 40, 400
    rng, g = np.random.default_rng(3), np.full(elements, elements**-0.5)

    def gradients(Ws, X, y, share):
        noise = rng.normal(size=(seeds, 1, elements)) * (trace / 8 / elements) ** 0.5
        return [g + noise]

    measure = {**code, "gradients": gradients}
    noise_scale = FunctionType(code["noise_scale"].__code__, measure, argdefs=(8,))
    rows = np.tile(np.arange(1024), (seeds, 1))
    for groups, biased in ((64, 400 / (1 + 400 / 512)), (512, 400 / (1 + 400 / 4096))):
        Ws = [np.zeros((seeds, 1, elements))]
        corrected, uncorrected = noise_scale(Ws, rows, groups)
        assert np.median(corrected) == pytest.approx(trace, rel=0.1)
        assert np.median(uncorrected) == pytest.approx(biased, rel=0.1)
