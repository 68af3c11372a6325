"""`start` takes over a process group that the user has made, and leaves it behind.

The ranks are of no use then, so this file comes after those that ask them, too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from processes.adopting import adopting
from processes.staying import Staying, started_once

import d2lmulti
from d2lmulti.backends.protocol import Backend


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        pytest.param(name, rounds, marks=started_once("shared_memory", name, 2))
        for name, rounds in [("torch", [True, False]), ("paddle", [True])]
    ],
)
def test_a_group_of_the_users_own_is_adopted(
    load: Callable[[str], Backend], staying: Staying, name: str, rounds: list[bool]
) -> None:
    load(name)
    everywhere = staying("shared_memory", name, 2)(adopting, name, rounds)
    staying.end()
    losses = d2lmulti.train(2, model="mlp", epochs=1, backend=name).losses
    for rank, values in enumerate(everywhere):
        for told, found in zip(rounds, values, strict=True):
            value, texts, places, loss, refused, after, group = found
            assert value == 6.0
            assert texts == ["rank 0", "rank 1"]
            assert places == [f"sim:{rank}"]
            assert loss == losses[-1]
            assert (f"rank {rank} of 3, got rank {rank} of 2" in refused) == told
            assert (after, group) == (3.0, None)  # mine goes on
