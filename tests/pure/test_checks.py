"""The checks themselves: what passes, what comes back, and what does not pass."""

from __future__ import annotations

import math

import numpy as np
import pytest

from d2lmulti import checks
from d2lmulti.errors import InvalidInput


def refused(check, name, *arguments, **named):
    with pytest.raises(InvalidInput, match=f"as {name}, got ") as caught:
        check(name, *arguments, **named)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_counts_are_whole_numbers_within_bounds():
    for value in (1, 7, np.int64(7), np.uint8(7), 2**63 - 1):
        found = checks.check_count("n", value)
        assert found == value and type(found) is int
    for value in (0, True, 1.5, math.nan, "3", 2**63, 10**25):
        refused(checks.check_count, "epochs", value)
    assert checks.check_count("n", 0, min=0) == 0
    assert checks.check_count("seed", 10**30, min=0, max=None) == 10**30
    refused(checks.check_count, "root", 4, 0, 3, "take a rank")


def test_numbers_are_finite_and_within_bounds():
    for value in (0, 0.5, np.float32(0.5), np.int32(0), -0.0):
        found = checks.check_number("momentum", value, min=0, below=1)
        assert found == value and type(found) in (int, float)
    for value in (1, -0.1, math.nan, math.inf, True, "0.5"):
        refused(checks.check_number, "momentum", value, min=0, below=1)


def test_finite_values():
    huge = np.full(4, 1e308)  # whose sum is not finite
    assert checks.check_finite("X", huge) is huge
    huge[2] = math.nan
    with pytest.raises(InvalidInput, match=r"got nan at \[2\]"):
        checks.check_finite("X", huge)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


def test_whatever_comes_is_shown_in_one_short_line():
    for value in (10**5000, Unprintable(), np.ones((9, 9)), "x" * 999):
        assert len(checks.shown(value)) <= 60
        assert "\n" not in checks.shown(value)
