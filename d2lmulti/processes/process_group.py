"""The process group: rank and world size of this process, and its engine.

A process reads its rank and the world size from environment variables, those of
`launch` or those of the frameworks' own launchers. `start` makes the group of all ranks
the current one. `launch` opens ports on the loopback address only; `torchrun` and
Paddle's launcher open them on all interfaces, for all clients: use them inside a
firewall.
Chapter: *many_machines*.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path

from ..checks import check_choice, check_count, check_positive
from ..comm.group import Group, current_group, local_group
from ..errors import InvalidInput

# Name -> the module whose `connect(info)` joins the other processes.
ENGINES = {
    "shared_memory": "shared_memory",
    "torch": "pytorch",
    "paddle": "paddle",
    "horovod": "horovod",
}
# Launcher's engine -> prefix of its variables, then rank, world size, and the number of
# ranks on this machine. The names of torchrun are the most common, so they come last.
_VARIABLES = {
    "shared_memory": ("D2LMULTI_", "RANK", "WORLD_SIZE", "LOCAL_SIZE"),
    "paddle": ("PADDLE_", "TRAINER_ID", "TRAINERS_NUM", "LOCAL_SIZE"),
    "horovod": ("HOROVOD_", "RANK", "SIZE", "LOCAL_SIZE"),
    "torch": ("", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
}
_rendezvous = count()  # numbers of the files in which the ranks find each other


@dataclass(frozen=True)
class ProcessInfo:
    """Rank and world size, globally and on this machine, and the launcher's engine."""

    rank: int
    size: int
    local_rank: int
    engine: str
    local_size: int = 1


def process_info(env: Mapping[str, str] | None = None) -> ProcessInfo:
    """Return rank and world size of this process, from the environment.

    Raises `InvalidInput` in a process that no launcher has started, and for invalid
    values, such as a rank that is not below the world size.
    """
    env = os.environ if env is None else env
    for engine, (prefix, *names) in _VARIABLES.items():
        rank, size, local_size = (prefix + name for name in names)
        if rank in env and size in env:
            n = _number(env, size, 1)
            number = _number(env, rank, 0, n - 1)
            local_rank = f"{prefix}LOCAL_RANK"
            return ProcessInfo(
                number,
                n,
                _number(env, local_rank, 0) if local_rank in env else number,
                env.get("D2LMULTI_ENGINE", engine),
                _number(env, local_size, 1) if local_size in env else n,
            )
    raise InvalidInput(
        "expected a process that a launcher has started, got no rank in the "
        "environment; start it with d2lmulti.processes.launch or torchrun"
    )


def launched(env: Mapping[str, str] | None = None) -> bool:
    """Return whether a launcher has started this process."""
    env = os.environ if env is None else env
    return any(
        prefix + rank in env and prefix + size in env
        for prefix, rank, size, _ in _VARIABLES.values()
    )


def launched_here() -> bool:
    """Return whether `launch` started this process, and all others on its machine."""
    return "D2LMULTI_STATUS_TABLE" in os.environ


def rendezvous_address() -> tuple[str, int]:
    """Return the address and port of rank 0, the rendezvous endpoint.

    Raises `InvalidInput` where MASTER_ADDR or MASTER_PORT is missing, or no port.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise InvalidInput(
                f"expected {name} in the environment, got none; start with torchrun or "
                "d2lmulti.processes.launch, or set both to those of rank 0"
            )
    return os.environ["MASTER_ADDR"], _number(os.environ, "MASTER_PORT", 0, 2**16 - 1)


def rendezvous_file() -> Path | None:
    """Return a file for the rendezvous of the ranks of a `launch`, else None.

    They are on one machine, and no other user can write to its folder. Every call
    returns another file, the same on all ranks.
    """
    if not launched_here():
        return None
    return Path(os.environ["D2LMULTI_FOLDER"]) / f"rendezvous {next(_rendezvous)}"


def time_limit() -> float:
    """Return the seconds after which a rank stops waiting: D2LMULTI_TIMEOUT, or 300.

    Engines detect ranks that have ended; this is for ranks that hang without a `launch`
    that monitors them.
    """
    seconds = float(os.environ.get("D2LMULTI_TIMEOUT", "300"))
    return check_positive("D2LMULTI_TIMEOUT", seconds)


def _number(
    env: Mapping[str, str], name: str, low: int, high: int | None = None
) -> int:
    text = env[name].strip()
    value = int(text) if text.lstrip("-").isdecimal() else text
    return check_count(name, value, low, high)


def start(engine: str | None = None) -> Group:
    """Join the group that this process was started for, and make it current.

    Without a name: D2LMULTI_ENGINE, else the engine of the detected launcher. An
    existing process group of `torch.distributed` or `paddle.distributed` is adopted,
    with its rank and size, and `stop` does not destroy it. Raises `InvalidInput` for an
    unknown engine, outside a launch, when a group has been started already, and where
    yours has another rank or size than the environment says.
    """
    if started() is not None:
        raise InvalidInput("expected one start per process, got a second; call stop()")
    name = engine or process_info().engine
    check_name(name)
    module = import_module(f"{__package__}.{ENGINES[name]}")
    dist = getattr(module, "dist", None)  # torch.distributed or paddle.distributed
    if dist is not None and dist.is_initialized():
        info = _adopted(name, dist.get_rank(), dist.get_world_size())
    else:
        info = process_info()
    if info.size == 1:  # engines may raise an error for one rank
        group = local_group(1)
    else:
        group = Group(info.size, (info.rank,), module.connect(info), info)
    current_group.set(group)
    return group


def _adopted(engine: str, rank: int, size: int) -> ProcessInfo:
    """Return rank and size of a process in a group that the user has made."""
    if not launched():
        return ProcessInfo(rank, size, rank, engine, size)
    info = process_info()
    if (info.rank, info.size) != (rank, size):
        raise InvalidInput(
            f"expected your process group to be the one of the environment, rank "
            f"{info.rank} of {info.size}, got rank {rank} of {size}; start with the "
            "group of all processes, or correct the environment"
        )
    return info


def started() -> Group | None:
    """Return the group of processes that this one belongs to, if it was started."""
    return current_group.get()


def stop() -> None:
    """Leave the group; without one, do nothing."""
    group = started()
    current_group.set(None)
    if group is not None:
        group.engine.close()


def check_name(engine: str | None) -> None:
    """Raise `InvalidInput` for an unknown engine."""
    if engine is not None:
        check_choice("engine", engine, ENGINES)
