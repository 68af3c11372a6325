"""`start` takes over a process group that the user has made, and leaves it behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from processes.adopting import adopting

import d2lmulti
from d2lmulti.backends.protocol import Backend
from d2lmulti.launch import launch


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("torch", True, marks=pytest.mark.torch),
        pytest.param("torch", False, marks=pytest.mark.torch),
        pytest.param("paddle", True, marks=pytest.mark.paddle),
    ],
)
def test_a_group_of_the_users_own_is_adopted(
    load: Callable[[str], Backend], name: str, told: bool
) -> None:
    load(name)
    run = launch(adopting, 2, name, told, backend=name)
    losses = d2lmulti.train(2, model="mlp", epochs=1, backend=name).losses
    for rank, found in enumerate(run.values):
        value, texts, places, loss, refused, after, group = found
        assert value == 6.0
        assert texts == ["rank 0", "rank 1"]
        assert places == [f"sim:{rank}"]
        assert loss == losses[-1]
        assert (f"rank {rank} of 3, got rank {rank} of 2" in refused) == told
        assert (after, group) == (3.0, None)  # mine goes on
