"""Each launcher's own names for rank and world size are understood."""

from __future__ import annotations

import pytest

from d2lmulti.errors import InvalidInput
from d2lmulti.processes.process_group import (
    ProcessInfo,
    launched,
    process_info,
    time_limit,
)


def variables(prefix: str, names: str, values: str) -> dict[str, str]:
    keys = [prefix + name for name in names.split()]
    return dict(zip(keys, values.split(), strict=True))


TORCHRUN = variables("", "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE", "3 4 1 2")
PADDLE = variables(
    "PADDLE_", "TRAINER_ID TRAINERS_NUM LOCAL_RANK LOCAL_SIZE", "1 2 1 2"
)
HOROVODRUN = variables("HOROVOD_", "RANK SIZE LOCAL_RANK LOCAL_SIZE", "5 6 1 2")
OURS = variables("D2LMULTI_", "RANK WORLD_SIZE", "0 2")


@pytest.mark.parametrize(
    ("env", "place"),
    [
        (TORCHRUN, ProcessInfo(3, 4, 1, "torch", 2)),
        (PADDLE, ProcessInfo(1, 2, 1, "paddle", 2)),
        (HOROVODRUN, ProcessInfo(5, 6, 1, "horovod", 2)),
        (OURS | {"D2LMULTI_ENGINE": "torch"}, ProcessInfo(0, 2, 0, "torch", 2)),
        (TORCHRUN | PADDLE | OURS, ProcessInfo(0, 2, 0, "shared_memory", 2)),
    ],
)
def test_a_launcher_is_recognized(env: dict[str, str], place: ProcessInfo) -> None:
    assert process_info(env) == place
    assert launched(env)


def test_outside_a_launch() -> None:
    assert not launched({"RANK": "0"})
    with pytest.raises(InvalidInput):
        process_info({"RANK": "0"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "4"), ("RANK", "-1"), ("WORLD_SIZE", "0"), ("LOCAL_RANK", "1.5")],
)
def test_a_variable_that_cannot_be_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=f" as {name}, got '?{value}"):
        process_info(TORCHRUN | {name: value})


@pytest.mark.parametrize("value", ["nan", "0", "inf"])
def test_a_time_limit_that_would_never_or_always_end(value: str, monkeypatch) -> None:
    monkeypatch.setenv("D2LMULTI_TIMEOUT", value)
    with pytest.raises(InvalidInput, match=f"as D2LMULTI_TIMEOUT, got {value}"):
        time_limit()
