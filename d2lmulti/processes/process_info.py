"""Which rank is this process? The environment says so, in each launcher's own words."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ..checks import check_count
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
_rendezvous = count()  # numbers of the meetings of this process


@dataclass(frozen=True)
class ProcessInfo:
    """Rank and world size, the same on this machine, and the launcher's engine."""

    rank: int
    size: int
    local_rank: int
    engine: str
    local_size: int = 1


def process_info(env: Mapping[str, str] | None = None) -> ProcessInfo:
    """Read this process's place from the environment.

    Raises `InvalidInput` in a process that no launcher has started, and for variables
    that cannot be: no numbers, a rank that is not below the world size, ...
    """
    env = os.environ if env is None else env
    for engine, (rank, size, local_rank, local_size) in _WORDS.items():
        if rank in env and size in env:
            count = _number(env, size, 1)
            number = _number(env, rank, 0, count - 1)
            return ProcessInfo(
                number,
                count,
                _number(env, local_rank, 0) if local_rank in env else number,
                env.get("D2LMULTI_ENGINE", engine),
                _number(env, local_size, 1) if local_size in env else count,
            )
    raise InvalidInput(
        "expected a process that a launcher has started, got none of "
        f"{', '.join(words[0] for words in _WORDS.values())} in the environment; start "
        "it with d2lmulti.processes.launch or torchrun"
    )


def rendezvous_address() -> tuple[str, int]:
    """Read where rank 0 of a group from several machines can be met.

    Raises `InvalidInput` where MASTER_ADDR or MASTER_PORT is missing, or no port.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise InvalidInput(
                f"expected {name} in the environment, got none; start with torchrun or "
                "d2lmulti.processes.launch, or say where rank 0 is to be met"
            )
    return os.environ["MASTER_ADDR"], _number(os.environ, "MASTER_PORT", 0, 2**16 - 1)


def time_limit() -> float:
    """Read after how many seconds a rank gives up waiting: D2LMULTI_TIMEOUT, or 300.

    An engine itself notices ranks that have died; this is for those that have stopped,
    where no `launch` looks after them. Raises `InvalidInput` for no such number.
    """
    text = os.environ.get("D2LMULTI_TIMEOUT", "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidInput(
            f"expected seconds above 0 in D2LMULTI_TIMEOUT, got {text!r}; correct it, "
            "or unset it for 300"
        )
    return seconds


def _number(
    env: Mapping[str, str], name: str, least: int, most: int | None = None
) -> int:
    text = env[name].strip()
    value = int(text) if text.lstrip("-").isdecimal() else env[name]
    hint = "it is a variable of the environment, which the launcher sets"
    return check_count(name, value, least, most, hint)


def rendezvous_file() -> Path | None:
    """Name a file in which the ranks of a `launch` can meet; None without a launch.

    They live on one machine, and nobody else can write to its folder. Every call names
    another file, the same on all ranks.
    """
    if not launched_here():
        return None
    return Path(os.environ["D2LMULTI_FOLDER"]) / f"rendezvous {next(_rendezvous)}"


def launched_here() -> bool:
    """Tell whether `launch` started this process, and all others on its machine."""
    return "D2LMULTI_STATUS_TABLE" in os.environ


def launched(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether a launcher has started this process."""
    env = os.environ if env is None else env
    return any(rank in env and size in env for rank, size, *_ in _WORDS.values())
