"""Data that many tests train on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from d2lmulti import load
from d2lmulti.data import Dataset


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """150 images, which are batches of 64, 64 and 22, and 97 to test, a prime."""
    whole = load("digits", "float64").first(150)
    return replace(whole, test_X=whole.test_X[:97], test_y=whole.test_y[:97])
