"""Which rank is this process? The environment says so, in each launcher's own words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidInput

# Launcher's engine -> its variables for rank, world size and rank on this machine.
_WORDS = {
    "shared_memory": ("D2LMULTI_RANK", "D2LMULTI_WORLD_SIZE", "D2LMULTI_LOCAL_RANK"),
}


@dataclass(frozen=True)
class Place:
    """Rank, world size, rank on this machine, and the engine of the launcher."""

    rank: int
    size: int
    local_rank: int
    engine: str


def find_place(env: Mapping[str, str] | None = None) -> Place:
    """Read this process's place from the environment.

    Raises `InvalidInput` in a process that no launcher has started.
    """
    env = os.environ if env is None else env
    for engine, (rank, size, local) in _WORDS.items():
        if rank in env and size in env:
            return Place(
                int(env[rank]),
                int(env[size]),
                int(env.get(local, env[rank])),
                env.get("D2LMULTI_ENGINE", engine),
            )
    raise InvalidInput(
        "expected a process that a launcher has started, got none of "
        f"{', '.join(words[0] for words in _WORDS.values())} in the environment; start "
        "it with d2lmulti.comm.launch or torchrun"
    )
