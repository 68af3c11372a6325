"""Start n processes on this machine, run functions in each, collect the results.

`launch` runs one function in them, `Ranks` keeps them for several functions, and
`launch_kvstore` starts MXNet's parameter server: scheduler, servers, and workers. A
function is sent by cloudpickle, so it may be a lambda or come from a notebook. The
function and its result are files in a private folder of the processes; a line on its
standard input announces the next function to a process. When one process fails, all are
ended, and the error contains the traceback of the process that failed first.
Chapters: *many_machines*, *why_not_faster*, *parameter_server*.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import cloudpickle

from ..backends import backend_name, get_backend
from ..checks import MAX_RANKS, check_count, check_positive
from ..errors import InvalidInput, PeerError
from . import process_group as engines
from .engine import FAILED, FINISHED, RUNNING, StatusTable
from .spawn import (
    Process,
    Processes,
    ProcessFailed,
    end_with_launcher,
    environment,
    exit_now,
    free_port,
    loopback,
    write_failure,
    write_value,
)

# The network interface of each engine, which would otherwise choose an external one.
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
_START = "from d2lmulti.processes.launcher import {0}; {0}()"


@dataclass(frozen=True)
class Run:
    """The results and the output of a group of processes, in rank order."""

    values: list[Any]
    outputs: list[str] = field(repr=False)
    errors: list[str] = field(repr=False)  # stderr, such as warnings
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
    `process_group.py`). `backend` becomes its default backend, `threads` the threads of
    its framework. When a process fails, the group is started again up to `restarts`
    times, and the function should continue from its checkpoint. The environment and the
    level of the root logger are passed on. Between GPUs, the default engine
    `shared_memory` copies every tensor through the CPU; `engine="torch"` or `"paddle"`
    uses NCCL if each rank has a GPU of its own. With `gpus=False` the processes see no
    GPU. Raises `InvalidInput` for arguments out of range, `ProcessFailed` with the
    traceback of the rank that failed first, or, after `timeout` seconds, with the call
    of each rank.
    """
    how: dict[str, Any] = {
        "engine": engine,
        "backend": backend,
        "threads": threads,
        "gpus": gpus,
    }
    job, attempt = pickled(function, args, kwargs), 0
    check_count("restarts", restarts, 0)
    while True:
        with Ranks(n, timeout=timeout, restart=attempt, **how) as ranks:
            try:
                values = ranks.run(job, last=True)
                outputs = [process.output for process in ranks.processes]
                errors = [process.errors for process in ranks.processes]
                return Run(values, outputs, errors, attempt)
            except ProcessFailed:
                if attempt == restarts:
                    raise
                attempt += 1


class Ranks:
    """n processes in one group: `ranks(function, *args)` runs it in each of them.

    They start at the first call, with engine, backend, and threads as in `launch`, and
    run until `close` or the end of a `with` block. A function gets its rank from
    `started()`; the state of modules remains for the next function. A call returns the
    results of the function, in rank order. It raises `ProcessFailed` as `launch` does,
    also after `timeout` seconds; the next call starts new processes.
    """

    def __init__(
        self,
        n: int = 2,
        *,
        engine: str | None = None,
        backend: str | None = None,
        threads: int = 1,
        timeout: float = 3600.0,
        gpus: bool = True,
        restart: int = 0,
    ) -> None:
        engines.check_name(engine)
        self._n = check_count("n", n, max=MAX_RANKS)
        self._timeout = check_positive("timeout", timeout)
        self._settings = {
            "D2LMULTI_WORLD_SIZE": str(n),
            "D2LMULTI_TIMEOUT": str(timeout),
            "D2LMULTI_RESTART": str(restart),
        }
        check_count("threads", threads, max=MAX_RANKS)
        for library in ("OMP", "MKL", "OPENBLAS"):
            self._settings[f"{library}_NUM_THREADS"] = str(threads)
        if engine is not None:
            self._settings["D2LMULTI_ENGINE"] = engine
        if backend is not None:
            self._settings["D2LMULTI_BACKEND"] = backend_name(backend)
        if not gpus:
            self._settings["CUDA_VISIBLE_DEVICES"] = ""
        # On Linux a process ends with the thread that started it, so this thread
        # remains.
        self._starter = ThreadPoolExecutor(1)
        self._group: Processes | None = None

    def __call__(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Run `function(*args, **kwargs)` in every process, all at the same time."""
        return self.run(pickled(function, args, kwargs))

    def run(self, job: bytes, last: bool = False) -> list[Any]:
        """Run a pickled function in every process; after the `last` one they end."""
        try:
            group = self._group or self._starter.submit(self._start).result()
            values = [process.value for process in group.members]
            for value in values:
                value.unlink(missing_ok=True)
            (group.folder / "job").write_bytes(job)
            for process in group.members:
                process.write("last" if last else "next")
            if last:
                self._wait(group, lambda: not group.alive)
            else:
                self._wait(group, lambda: all(value.exists() for value in values))
            return [_result(rank, value) for rank, value in enumerate(values)]
        except BaseException:  # also Ctrl-C: the values are no longer needed
            self.close()
            raise

    @property
    def processes(self) -> list[Process]:
        """The processes, in rank order; none before the first call."""
        return self._group.members if self._group else []

    def close(self) -> None:
        """End the processes, if there are any."""
        group, self._group = self._group, None
        if group is not None:
            group.end()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> Processes:
        group = self._group = Processes()
        table = group.folder / "status"
        StatusTable.create(table, self._n)
        env = environment() | self._settings
        env |= dict.fromkeys(_INTERFACES, loopback())
        env |= {
            "D2LMULTI_STATUS_TABLE": str(table),
            "D2LMULTI_LOG_LEVEL": str(logging.getLogger().level),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        for rank in range(self._n):
            env["D2LMULTI_RANK"] = str(rank)
            group.spawn(
                f"rank {rank}", ["-c", _START.format("work")], env, subprocess.PIPE
            )
        return group

    def _wait(self, group: Processes, done: Callable[[], bool]) -> None:
        table = StatusTable(group.folder / "status", self._n)
        group.wait(done, self._timeout, lambda: f"Who did what:\n{table.in_words()}")


def work() -> None:
    """Run the functions of `Ranks`; called in each of its processes."""
    end_with_launcher()
    logging.basicConfig(level=int(os.environ["D2LMULTI_LOG_LEVEL"]))
    job = Path(os.environ["D2LMULTI_FOLDER"], "job")
    try:
        _set_state(RUNNING)
        gc.disable()  # importing a framework makes many objects, none of them garbage
        engines.start()
        gc.freeze()
        gc.enable()
        for _ in _announced():
            function, args, kwargs = unpickled(job.read_bytes())
            write_value(cloudpickle.dumps(function(*args, **kwargs)))
        engines.stop()
        _set_state(FINISHED)
        exit_now(0)
    except BaseException as error:
        _set_state(FAILED)
        write_failure(waiting=isinstance(error, PeerError))
        traceback.print_exc()
        exit_now(1)


def _announced() -> Iterator[None]:
    """Yield once for each job that the launcher announces on standard input."""
    with open(os.dup(0)) as lines, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # functions read from an empty input
        for line in lines:
            yield
            if line == "last\n":
                return


def _set_state(state: int) -> None:
    if table := StatusTable.of_this_process():
        table.set_state(state)


def pickled(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bytes:
    """Pickle a call for a process that may not be able to import its module."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    name = getattr(module, "__name__", "__main__")
    # A module that a new Python process would not find is sent with the function.
    by_value = name != "__main__" and not PathFinder.find_spec(name.partition(".")[0])
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((function, args, kwargs))
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def unpickled(data: bytes) -> Any:
    """Unpickle a value; MXNet's arrays need NumPy semantics first."""
    if b"mxnet.numpy" in data:
        get_backend("mxnet")
    return pickle.loads(data)


def _result(rank: int, file: Path) -> Any:
    try:
        return unpickled(file.read_bytes())
    except Exception as error:
        raise InvalidInput(
            f"expected a result that can be unpickled from rank {rank}, got "
            f"{type(error).__name__}: {error}; return arrays or plain values"
        ) from error


# -- MXNet's parameter server ----------------------------------------------------------


def launch_kvstore(
    program: str,
    *,
    workers: int = 2,
    servers: int = 1,
    arguments: Sequence[str] = (),
    timeout: float = 60.0,
) -> list[str]:
    """Run a Python program as every worker; return their outputs, in rank order.

    `program` is source text; it makes a `KVStore` and gets `arguments` as sys.argv[1:].
    Raises `InvalidInput` without workers, servers or time, `ProcessFailed` when a
    process ends with an error or `timeout` seconds are over.
    """
    check_count("workers", workers, max=MAX_RANKS)
    check_count("servers", servers, max=MAX_RANKS)
    check_positive("timeout", timeout)
    with Processes() as group:
        path = group.folder / "program.py"
        path.write_text(program)
        env = environment() | {
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "DMLC_NODE_HOST": "127.0.0.1",  # otherwise it would search for a network
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
        }
        env.pop("DMLC_ROLE", None)
        for role, count in (("scheduler", 1), ("server", servers)):
            for i in range(count):
                command = ["-c", _START.format("serve"), role]
                group.spawn(f"{role} {i}", command, env)
        command = ["-c", _START.format("work_for_kvstore"), str(path), *arguments]
        env["DMLC_ROLE"] = "worker"
        started_workers = []
        for i in range(workers):
            env["D2LMULTI_WORKER_FILE"] = str(group.folder / f"worker {i}")
            started_workers.append(group.spawn(f"worker {i}", command, env))
        group.wait(lambda: not group.alive, timeout, lambda: _last_words(group))
        return [process.output for process in sorted(started_workers, key=_rank)]


def _last_words(group: Processes) -> str:
    process = group.alive[-1]
    return f"Last words of {process.name}:\n{process.last_words()}"


def _rank(worker: Process) -> int:
    """Return the rank that MXNet assigned to a worker, from the file of `KVStore`."""
    file = worker.folder / f"{worker.name}.rank"
    return int(file.read_text()) if file.exists() else int(worker.name.split()[1])


def work_for_kvstore() -> None:
    """Run the program of a worker (sys.argv[1:]); called in the worker's process."""
    sys.argv = sys.argv[1:]
    end_with_launcher()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        exit_now(1)  # an ordinary exit would wait at a barrier for the other workers
    write_value()


def serve() -> None:
    """Run the scheduler or a server (sys.argv[1]); called in that process."""
    end_with_launcher()
    from . import mxnet_kvstore  # only here is MXNet needed

    mxnet_kvstore.serve(sys.argv[1])
    write_value()
