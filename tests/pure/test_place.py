"""Each launcher's own words for rank and world size are understood."""

from __future__ import annotations

import pytest

from d2lmulti.comm.place import Place, find_place, launched
from d2lmulti.errors import InvalidInput

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
PADDLE = {
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_LOCAL_RANK": "1",
    "PADDLE_LOCAL_SIZE": "2",
}
HOROVODRUN = {
    "HOROVOD_RANK": "5",
    "HOROVOD_SIZE": "6",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
}
OURS = {"D2LMULTI_RANK": "0", "D2LMULTI_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("env", "place"),
    [
        (TORCHRUN, Place(3, 4, 1, "torch", 2)),
        (PADDLE, Place(1, 2, 1, "paddle", 2)),
        (HOROVODRUN, Place(5, 6, 1, "horovod", 2)),
        (OURS, Place(0, 2, 0, "shared_memory", 2)),
        (OURS | {"D2LMULTI_ENGINE": "torch"}, Place(0, 2, 0, "torch", 2)),
        (TORCHRUN | PADDLE | OURS, Place(0, 2, 0, "shared_memory", 2)),
    ],
)
def test_a_launcher_is_recognised(env: dict[str, str], place: Place) -> None:
    assert find_place(env) == place
    assert launched(env)


def test_outside_a_launch() -> None:
    assert not launched({"RANK": "0"})
    with pytest.raises(InvalidInput, match="a process that a launcher has started"):
        find_place({"RANK": "0"})
