"""Start n processes on this machine, run one function in each, collect what they say.

The function travels by cloudpickle, so a notebook's cell or a lambda will do. When one
process fails, all are ended, and the error shows what the first one had to say.
Chapter: *many_machines*.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import cloudpickle

from ..backends import backend_name, get_backend
from ..checks import (
    MAX_RANKS,
    check_count,
    check_flag,
    check_kind,
    check_positive,
)
from ..errors import PeerError
from ..importing import quickly
from . import process_group as engines
from .private_folder import check_private
from .spawn import (
    Process,
    Processes,
    ProcessFailed,
    end_with_launcher,
    environment,
    exit_now,
    free_port,
    loopback,
    new_processes,
)
from .status_table import FAILED, FINISHED, RUNNING, StatusTable

_GRACE = 0.2  # seconds in which all that fail for one reason do so
_LONG_GRACE = 5.0  # where only such have failed as were left waiting
# Which network each engine takes: by the machine's name it would find an outer one.
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
_START = "from d2lmulti.processes.launcher import work; work()"


@dataclass(frozen=True)
class Run:
    """What a group of processes returned and printed, in rank order."""

    values: list[Any]
    outputs: list[str] = field(repr=False)
    errors: list[str] = field(repr=False)  # stderr: warnings and the like
    restarts: int = 0

    def __repr__(self) -> str:
        return "\n".join(
            f"rank {rank}: {line}"
            for rank, output in enumerate(self.outputs)
            for line in output.splitlines()
        )


def launch(
    function: Callable[..., Any],
    n: int = 2,
    *args: Any,
    engine: str | None = None,
    backend: str | None = None,
    threads: int = 1,
    timeout: float = 300.0,
    restarts: int = 0,
    gpus: bool = True,
    **kwargs: Any,
) -> Run:
    """Run `function(*args, **kwargs)` in n new processes, one rank each.

    In each of them the current group is that of the n ranks, on the named engine (see
    `engine.py`). `backend` becomes its default backend, `threads` the threads of its
    framework. When a process fails, the group is started again up to `restarts` times,
    and the function should go on from its checkpoint. The environment and the level of
    the root logger are passed on. Between GPUs, the default engine `shared_memory`
    copies every tensor through the CPU; `engine="torch"` or `"paddle"` uses NCCL if
    each rank has a GPU of its own. With `gpus=False` the processes see no GPU. Raises
    `InvalidInput` for arguments out of range, `ProcessFailed` with the traceback of the
    rank that failed first, or, after `timeout` seconds, with who waits for whom.
    """
    how = _check_how(n, engine, backend, threads, timeout)
    how["gpus"] = check_flag("gpus", gpus)
    check_count("restarts", restarts, min=0)
    job, attempt = _pickled(function, args, kwargs), 0
    while True:
        try:
            return _run_once(job, attempt, **how)
        except ProcessFailed:
            if attempt == restarts:
                raise
            attempt += 1


def _check_how(
    n: int, engine: str | None, backend: str | None, threads: int, timeout: float
) -> dict[str, Any]:
    """Give the settings of a group of processes back, or refuse what none can have."""
    engines.check_name(engine)
    return {
        "n": check_count("n", n, max=MAX_RANKS, hint="say how many processes"),
        "engine": engine,
        "backend": None if backend is None else backend_name(backend),
        "threads": check_count("threads", threads, max=MAX_RANKS),
        "timeout": check_positive("timeout", timeout, "give seconds"),
    }


def work() -> None:
    """Run the function of this process; called in a process that `launch` started."""
    end_with_launcher()
    logging.basicConfig(level=int(os.environ["D2LMULTI_LOG_LEVEL"]))
    folder = Path(os.environ["D2LMULTI_FOLDER"])
    info = engines.process_info()
    table, status = StatusTable.mine(), 1
    try:
        check_private(folder)
        with quickly():
            function, args, kwargs = unpickled((folder / "function").read_bytes())
            if table:
                table.set_state(RUNNING)
            engines.start()
        value = function(*args, **kwargs)
        engines.stop()
        new = folder / f"rank {info.rank}.new"
        new.write_bytes(cloudpickle.dumps(value))
        new.rename(folder / f"rank {info.rank}.value")  # which is the whole value
        if table:
            table.set_state(FINISHED)
        status = 0
    except BaseException as error:
        if table:
            table.set_state(FAILED)
        blame = f"{isinstance(error, PeerError):d} {time.monotonic()}"
        (folder / f"rank {info.rank}.failed").write_text(blame)
        traceback.print_exc()
    finally:  # an engine's own exit may wait for ranks that are gone
        exit_now(status)


def _run_once(
    job: bytes, attempt: int, n: int, engine: str | None, backend: str | None,
    threads: int, timeout: float, gpus: bool,
) -> Run:  # fmt: skip
    with new_processes() as group:
        folder = group.folder
        (folder / "function").write_bytes(job)
        (folder / "word").write_bytes(secrets.token_bytes(32))
        StatusTable.create(folder / "status", n)
        common = environment() | {
            "D2LMULTI_WORLD_SIZE": str(n),
            "D2LMULTI_STATUS_TABLE": str(folder / "status"),
            "D2LMULTI_RESTART": str(attempt),
            "D2LMULTI_LOG_LEVEL": str(logging.getLogger().level),
            "D2LMULTI_TIMEOUT": str(timeout),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            **dict.fromkeys(_INTERFACES, loopback()),
        }
        if not gpus:
            common["CUDA_VISIBLE_DEVICES"] = ""
        for library in ("OMP", "MKL", "OPENBLAS"):
            common[f"{library}_NUM_THREADS"] = str(threads)
        if engine is not None:
            common["D2LMULTI_ENGINE"] = engine
        if backend is not None:
            common["D2LMULTI_BACKEND"] = backend
        for rank in range(n):
            env = common | {"D2LMULTI_RANK": str(rank)}
            group.spawn(f"rank {rank}", ["-c", _START], env)
        _wait(group, timeout)
        check_private(folder)
        ranks = group.members
        values = [returned(p.name, _value_of(p).read_bytes()) for p in ranks]
        outputs, errors = [p.output for p in ranks], [p.errors for p in ranks]
        return Run(values, outputs, errors, attempt)


def _wait(group: Processes, timeout: float) -> None:
    def who_did_what(_: Sequence[Process]) -> str:
        table = StatusTable(group.folder / "status", len(group.members))
        return f"Who did what:\n{table.in_words()}"

    if group.wait(group.members, timeout, _failed, who_did_what):
        _let_others_fail(group)
        raise min(filter(_failed, group.members), key=_blame).failure()


def _let_others_fail(group: Processes) -> None:
    """Wait a little for all that fail for one reason, and longer for the reason.

    A rank that was left waiting may well end before the one that left it.
    """
    began = time.monotonic()
    while group.alive:
        guilty = any(_failed(p) and not _blame(p)[0] for p in group.members)
        if time.monotonic() > began + (_GRACE if guilty else _LONG_GRACE):
            break
        time.sleep(0.01)


def _failed(process: Process) -> bool:
    """Whether it has ended by an error, or before its function had returned."""
    if process.ended is None:
        return False
    return process.ended != 0 or not _value_of(process).exists()


def _value_of(process: Process) -> Path:
    return process.folder / f"{process.name}.value"


def _blame(process: Process) -> tuple[float, ...]:
    """Sort by who is to blame: killed, then failed by itself, then left waiting."""
    report = process.folder / f"{process.name}.failed"
    return tuple(map(float, report.read_text().split())) if report.exists() else (0, 0)


def unpickled(data: bytes) -> Any:
    """Load what `cloudpickle` wrote; MXNet's arrays need NumPy semantics first."""
    if b"mxnet.numpy" in data:
        get_backend("mxnet")
    return pickle.loads(data)


def returned(name: str, data: bytes) -> Any:
    """Load what a process returned. Raises `ProcessFailed` where that is impossible."""
    try:
        return unpickled(data)
    except Exception as error:
        raise ProcessFailed(
            f"expected a value that this process can unpickle from {name}, got "
            f"{type(error).__name__}: {error!s:.200}; return numbers, lists or arrays"
        ) from error


def _pickled(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bytes:
    """Give a call as bytes, for a process that need not know the function's module."""
    check_kind("function", function, Callable, "a function")
    module = sys.modules.get(getattr(function, "__module__", ""))
    name = getattr(module, "__name__", "__main__")
    # A module that a fresh Python would not find travels with the function.
    by_value = name != "__main__" and not PathFinder.find_spec(name.partition(".")[0])
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((function, args, kwargs))
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
