"""Each launcher's own words for rank and world size are understood."""

from __future__ import annotations

import pytest

from d2lmulti.errors import InvalidInput
from d2lmulti.processes.process_info import (
    ProcessInfo,
    launched,
    process_info,
    rendezvous_address,
    time_limit,
)

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
        (TORCHRUN, ProcessInfo(3, 4, 1, "torch", 2)),
        (PADDLE, ProcessInfo(1, 2, 1, "paddle", 2)),
        (HOROVODRUN, ProcessInfo(5, 6, 1, "horovod", 2)),
        (OURS, ProcessInfo(0, 2, 0, "shared_memory", 2)),
        (OURS | {"D2LMULTI_ENGINE": "torch"}, ProcessInfo(0, 2, 0, "torch", 2)),
        (TORCHRUN | PADDLE | OURS, ProcessInfo(0, 2, 0, "shared_memory", 2)),
    ],
)
def test_a_launcher_is_recognised(env: dict[str, str], place: ProcessInfo) -> None:
    assert process_info(env) == place
    assert launched(env)


def test_outside_a_launch() -> None:
    assert not launched({"RANK": "0"})
    with pytest.raises(InvalidInput, match="a process that a launcher has started"):
        process_info({"RANK": "0"})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RANK", "a", "from 0 to 3 as RANK, got 'a'; it is a variable of the env"),
        ("RANK", "4", "from 0 to 3 as RANK, got 4"),
        ("RANK", "-1", "from 0 to 3 as RANK, got -1"),
        ("RANK", "", "from 0 to 3 as RANK, got ''"),
        ("WORLD_SIZE", "0", "of at least 1 as WORLD_SIZE, got 0"),
        ("WORLD_SIZE", "two", "of at least 1 as WORLD_SIZE, got 'two'"),
        ("LOCAL_RANK", "1.5", "of at least 0 as LOCAL_RANK, got '1.5'"),
        ("LOCAL_WORLD_SIZE", "0", "of at least 1 as LOCAL_WORLD_SIZE, got 0"),
    ],
)
def test_a_variable_that_cannot_be_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        process_info(TORCHRUN | {name: value})


@pytest.mark.parametrize("value", ["soon", "nan", "-1", "0", "inf", ""])
def test_a_limit_that_is_none_is_named(value: str, monkeypatch) -> None:
    monkeypatch.setenv("D2LMULTI_TIMEOUT", value)
    with pytest.raises(InvalidInput, match=f"in D2LMULTI_TIMEOUT, got {value!r}"):
        time_limit()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MASTER_ADDR", None, "expected MASTER_ADDR in the environment, got none"),
        ("MASTER_PORT", None, "expected MASTER_PORT in the environment, got none"),
        ("MASTER_PORT", "http", "from 0 to 65535 as MASTER_PORT, got 'http'"),
        ("MASTER_PORT", "70000", "from 0 to 65535 as MASTER_PORT, got 70000"),
    ],
)
def test_an_address_that_is_missing_is_named(
    name: str, value: str | None, words: str, monkeypatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert rendezvous_address() == ("localhost", 1234)
    monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=words):
        rendezvous_address()
