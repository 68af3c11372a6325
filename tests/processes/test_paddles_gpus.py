"""On which GPU each of Paddle's ranks computes: the choice, with GPUs made up.

Paddle has no hook through which all operations pass, so its CPU cannot pose as GPUs, as
PyTorch's does in `test_on_posed_gpus`: no real or posed GPU has run what follows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from processes.staying import Staying

from d2lmulti.processes.process_group import started


class Renamed:
    """A store whose keys begin with a word."""

    def __init__(self, store: Any, word: object) -> None:
        self.store, self.word = store, word

    def set(self, key: str, value: str) -> None:
        self.store.set(f"{self.word} {key}", value)

    def get(self, key: str) -> bytes:
        return self.store.get(f"{self.word} {key}")


PADDLES_GPUS = [  # the GPUs that ranks 0 and 1 see, and which of them they take
    ([["a", "b"], ["a", "b"]], [0, 1]),
    ([["a"], ["b"]], [0, 0]),  # a scheduler shows each rank one GPU
    ([["a"], ["a"]], [None, None]),  # fewer GPUs than ranks
    ([["a", "b"], ["b", "a"]], [None, None]),  # two launchers choose the same
    ([["a"], []], [None, None]),
]


def choose() -> list[int | None]:
    """Let Paddle's engine choose among GPUs that are made up."""
    import paddle

    from d2lmulti.processes import paddle as paddles

    group, taken = started(), []
    with pytest.MonkeyPatch.context() as patch:
        for number, (visible, _) in enumerate(PADDLES_GPUS):
            seen = visible[group.local_ranks[0]]
            count = partial(len, seen)
            patch.setattr(paddle.device.cuda, "device_count", count)
            patch.setattr(paddles, "gpu_id", seen.__getitem__)
            store = Renamed(group.engine._store, number)
            taken.append(paddles.gpu_of_its_own(group.info, store))
    return taken


@pytest.mark.paddle
@pytest.mark.xdist_group("paddle-paddle-2")  # as `started_once` says
def test_paddles_ranks_take_nccl_where_no_two_share_a_gpu(
    load: Any, staying: Staying
) -> None:
    load("paddle")
    everywhere = staying("paddle", "paddle", 2)(choose)
    expected = [taken for _, taken in PADDLES_GPUS]
    assert [list(taken) for taken in zip(*everywhere, strict=True)] == expected
