"""`start` takes over a process group that the user has made, and leaves it behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from processes.adopting import adopting

import d2lmulti
from d2lmulti.backends.protocol import Backend
from d2lmulti.processes.launcher import launch


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        pytest.param("torch", [True, False], marks=pytest.mark.torch),
        pytest.param("paddle", [True], marks=pytest.mark.paddle),
    ],
)
def test_a_group_of_the_users_own_is_adopted(
    load: Callable[[str], Backend], name: str, rounds: list[bool]
) -> None:
    load(name)
    run = launch(adopting, 2, name, rounds, backend=name)
    losses = d2lmulti.train(2, model="mlp", epochs=1, backend=name).losses
    for rank, values in enumerate(run.values):
        for told, found in zip(rounds, values, strict=True):
            value, texts, places, loss, refused, after, group = found
            assert value == 6.0
            assert texts == ["rank 0", "rank 1"]
            assert places == [f"sim:{rank}"]
            assert loss == losses[-1]
            assert (f"rank {rank} of 3, got rank {rank} of 2" in refused) == told
            assert (after, group) == (3.0, None)  # mine goes on
