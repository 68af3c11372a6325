"""Which rank is this process? The environment says so, in each launcher's own words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

from ..errors import InvalidInput

# Launcher's engine -> its variables for rank and world size, here and in all. The
# words of torchrun are the plainest, so they come last.
_WORDS = {
    "shared_memory": (
        "D2LMULTI_RANK",
        "D2LMULTI_WORLD_SIZE",
        "D2LMULTI_LOCAL_RANK",
        "D2LMULTI_LOCAL_SIZE",
    ),
    "paddle": (
        "PADDLE_TRAINER_ID",
        "PADDLE_TRAINERS_NUM",
        "PADDLE_LOCAL_RANK",
        "PADDLE_LOCAL_SIZE",
    ),
    "horovod": (
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
    ),
    "torch": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
}


@dataclass(frozen=True)
class Place:
    """Rank and world size, the same on this machine, and the launcher's engine."""

    rank: int
    size: int
    local_rank: int
    engine: str
    local_size: int = 1


def find_place(env: Mapping[str, str] | None = None) -> Place:
    """Read this process's place from the environment.

    Raises `InvalidInput` in a process that no launcher has started.
    """
    env = os.environ if env is None else env
    for engine, (rank, size, local_rank, local_size) in _WORDS.items():
        if rank in env and size in env:
            return Place(
                int(env[rank]),
                int(env[size]),
                int(env.get(local_rank, env[rank])),
                env.get("D2LMULTI_ENGINE", engine),
                int(env.get(local_size, env[size])),
            )
    raise InvalidInput(
        "expected a process that a launcher has started, got none of "
        f"{', '.join(words[0] for words in _WORDS.values())} in the environment; start "
        "it with d2lmulti.comm.launch or torchrun"
    )


def meeting_place() -> Path | None:
    """Name a file in which the ranks of a `launch` can meet; None without a launch.

    They live on one machine, and nobody else can write to its folder. Every call names
    another file, the same on all ranks.
    """
    if "D2LMULTI_BOARD" not in os.environ:
        return None
    return Path(os.environ["D2LMULTI_FOLDER"]) / f"meeting {next(_meetings())}"


@cache
def _meetings() -> Iterator[int]:
    return count()


def launched(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether a launcher has started this process."""
    env = os.environ if env is None else env
    return any(rank in env and size in env for rank, size, *_ in _WORDS.values())
