"""The checks themselves: what passes, what comes back, what the sentence says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from d2lmulti import checks
from d2lmulti.errors import InvalidInput


def refused(check, *arguments, **named):
    with pytest.raises(InvalidInput) as caught:
        check(*arguments, **named)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 300
    return message


@pytest.mark.parametrize("value", [1, 7, np.int64(7), np.uint8(7), 2**63 - 1])
def test_counts_come_back_as_python_integers(value):
    found = checks.check_count("n", value)
    assert found == value and type(found) is int


@pytest.mark.parametrize("value", [0, True, 1.5, math.nan, "3", 10**25], ids=repr)
def test_no_counts(value):
    assert "as epochs, got " in refused(checks.check_count, "epochs", value)


def test_a_count_has_bounds():
    assert checks.check_count("n", 0, min=0) == 0
    assert checks.check_count("seed", 10**30, min=0, max=None) == 10**30
    message = refused(checks.check_count, "root", 4, 0, 3, "take a rank")
    assert message == (
        "expected a whole number from 0 to 3 as root, got 4; take a rank"
    )
    refused(checks.check_count, "n", 2**63)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.5), np.int32(0), -0.0])
def test_numbers_come_back_as_python_numbers(value):
    found = checks.check_number("momentum", value, min=0, below=1)
    assert found == value and type(found) in (int, float)


@pytest.mark.parametrize("value", [1, -0.1, math.nan, math.inf, True, "0.5"])
def test_no_numbers(value):
    message = refused(checks.check_number, "momentum", value, min=0, below=1)
    expected = "expected a finite number of at least 0 and below 1 as momentum, got "
    assert message.startswith(expected)


def test_finite_values():
    huge = np.full(4, 1e308)  # whose sum is not finite
    assert checks.check_finite("X", huge) is huge
    huge[2] = math.nan
    assert "got nan at [2]" in refused(checks.check_finite, "X", huge)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


def test_whatever_comes_is_shown_in_one_short_line():
    for value in (10**5000, Unprintable(), np.ones((9, 9)), "x" * 999):
        assert len(checks.shown(value)) <= 60
        assert "\n" not in checks.shown(value)
