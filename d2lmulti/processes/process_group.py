"""The engine of this process: what exchanges bytes between it and the other ranks.

A process learns its rank and the world size from environment variables, those of
`launch` or those of the frameworks' own launchers. `start` makes the group of all
ranks the current one.
`launch` opens ports on the loopback address alone; `torchrun` and Paddle's launcher
open them on all interfaces, for whoever connects: use them inside a firewall.
Chapter: *many_machines*.
"""

from __future__ import annotations

from importlib import import_module

from ..checks import check_choice
from ..comm.group import Group, current_group, local_group
from ..errors import InvalidInput
from .process_info import ProcessInfo, launched, process_info

# Name -> the module whose `connect(info)` joins the other processes.
ENGINES = {
    "shared_memory": "shared_memory",
    "torch": "pytorch",
    "paddle": "paddle",
    "horovod": "horovod",
}


def start(engine: str | None = None) -> Group:
    """Join the group that this process was started for; it becomes the current one.

    Without a name: D2LMULTI_ENGINE, else the engine of the launcher that is recognized.
    A process group that you have made already, with `torch.distributed` or
    `paddle.distributed`, is adopted, with its rank and size, and `stop` leaves it as it
    is. Raises `InvalidInput` for an unknown engine, outside a launch, when a group has
    been started already, and where yours has another rank or size than the environment
    says.
    """
    if started() is not None:
        raise InvalidInput("expected one start per process, got a second; call stop()")
    name = engine or process_info().engine
    check_name(name)
    module = import_module(f"{__package__}.{ENGINES[name]}")
    joined = module.joined() if hasattr(module, "joined") else None
    info = process_info() if joined is None else _adopted(name, *joined)
    if info.size == 1:  # an engine may raise an error where there is nobody else
        group = local_group(1)
    else:
        group = Group(info.size, (info.rank,), module.connect(info), info)
    current_group.set(group)
    return group


def _adopted(engine: str, rank: int, size: int) -> ProcessInfo:
    """Return the place of a process in a group that the user has made."""
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
