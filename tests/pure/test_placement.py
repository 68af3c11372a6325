"""Placements: every element on exactly one server, and how even the servers are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.plans.placement import PLACEMENTS, server_sizes, shard_to_servers

SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=12)
LENET = [180, 20, 25_000, 50, 102_400, 128, 1_280, 10]


@given(SIZES, st.integers(1, 9), st.sampled_from(sorted(PLACEMENTS)))
def test_every_element_is_kept_once(sizes: list[int], servers: int, name: str) -> None:
    seen = [np.zeros(size, int) for size in sizes]
    parts = shard_to_servers(sizes, servers, name)
    for part in parts:
        seen[part.parameter][part.first : part.last] += 1
    assert all((count == 1).all() for count in seen)
    assert sum(server_sizes(parts, servers)) == sum(sizes)
    assert parts == sorted(parts)


@given(SIZES, st.integers(1, 9))
def test_cut_differs_by_one_element_at_most(sizes: list[int], servers: int) -> None:
    held = server_sizes(shard_to_servers(sizes, servers, "cut"), servers)
    assert max(held) - min(held) <= 1


@given(SIZES, st.integers(1, 9))
def test_greedy_exceeds_the_mean_by_one_parameter_at_most(
    sizes: list[int], servers: int
) -> None:
    held = server_sizes(shard_to_servers(sizes, servers, "greedy"), servers)
    assert max(held) <= sum(sizes) / servers + max(sizes)


def test_lenet_on_two_servers() -> None:
    held = {
        name: server_sizes(shard_to_servers(LENET, 2, name), 2) for name in PLACEMENTS
    }
    assert held == {
        "round_robin": [128_860, 208],
        "greedy": [102_400, 26_668],
        "cut": [64_534, 64_534],
    }
