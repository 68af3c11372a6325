"""The modeled time of a plan, and of buckets behind a backward pass, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.plans.allreduce import (
    halving_doubling,
    recursive_doubling,
    ring,
    star,
    tree,
)
from d2lmulti_cluster.cost import plan_seconds, spans


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16])
def test_plans_take_the_textbook_time(n):
    alpha, rate, length = 1e-5, 1e9, 1680 * 16
    whole = length * 4 / rate
    seconds = {
        plan: plan_seconds(plan(n, length), 4, alpha, rate)
        for plan in (star, tree, ring, recursive_doubling, halving_doubling)
    }
    assert seconds[star] == pytest.approx(2 * (n - 1) * (alpha + whole))
    rounds = (n - 1).bit_length()
    assert seconds[tree] == pytest.approx(2 * rounds * (alpha + whole))
    parts = 2 * (n - 1) / n * whole
    assert seconds[ring] == pytest.approx(2 * (n - 1) * alpha + parts)
    if n & (n - 1) == 0:
        assert seconds[recursive_doubling] == pytest.approx(rounds * (alpha + whole))
        assert seconds[halving_doubling] == pytest.approx(2 * rounds * alpha + parts)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10))))
def test_buckets_follow_each_other_and_never_come_too_early(buckets):
    ready, costs = [r for r, _ in buckets], [c for _, c in buckets]
    found = spans(ready, costs)
    for i, (begin, end) in enumerate(found):
        assert begin >= ready[i] and end == begin + costs[i]
        assert begin == max(ready[i], found[i - 1][1] if i else 0.0)
