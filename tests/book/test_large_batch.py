"""The stored runs of the chapter large_batch are those of the page's own code."""

from __future__ import annotations

import json

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


@pytest.mark.parametrize("name", ["normalised/gradual/64", "plain/none/16"])
def test_a_stored_run_is_what_the_page_gives(code, stored, name):
    wanted = dict(large_batch.runs(code))
    here = wanted[name](range(5))
    # Rounding differs between machines, and training makes it grow: not to the digit.
    assert np.mean(here) == pytest.approx(np.mean(stored["runs"][name][:5]), abs=1.0)
