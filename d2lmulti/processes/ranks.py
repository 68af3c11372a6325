"""n processes of one group that run one function after another, all at the same time.

`launch` runs one function in them, `Ranks` keeps them. A function and what it returns
are pickled into files of the processes' private folder; a line on its standard input
tells a process that the next function is there. Chapters: *many_machines*,
*why_not_faster*.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import cloudpickle

from ..backends import backend_name, get_backend
from ..checks import MAX_RANKS, check_count, check_positive
from ..errors import PeerError
from . import process_group as engines
from .spawn import (
    Process,
    Processes,
    end_with_launcher,
    environment,
    exit_now,
    free_port,
    loopback,
    write_failure,
    write_value,
)
from .status_table import FAILED, FINISHED, RUNNING, StatusTable

# The network of each engine: by the machine's name it would find an outer one.
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
_START = "from d2lmulti.processes.ranks import work; work()"


class Ranks:
    """n processes in one group: `ranks(function, *args)` runs it in each of them.

    They start at the first call, on the engine, backend and threads that `launch` would
    give them, and live until `close` or the end of a `with` block. A function finds its
    rank in `started()`; what it leaves in modules stays there for the next one. A call
    returns what the function returned, in rank order. It raises `ProcessFailed` as
    `launch` does, also after `timeout` seconds; the next call starts new processes.
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
        # On Linux a process ends with the thread that started it: this one stays.
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
            return [unpickled(value.read_bytes()) for value in values]
        except BaseException:  # also Ctrl-C: nobody waits for these values anymore
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
            group.spawn(f"rank {rank}", ["-c", _START], env, subprocess.PIPE)
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
        engines.start()
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
    """Yield for each job that the launcher announces on this standard input."""
    with open(os.dup(0)) as lines, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # what a function reads is nothing
        for line in lines:
            yield
            if line == "last\n":
                return


def _set_state(state: int) -> None:
    if table := StatusTable.mine():
        table.set_state(state)


def pickled(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bytes:
    """Pickle a call for a process that need not know the function's module."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    name = getattr(module, "__name__", "__main__")
    # A module that a fresh Python would not find is sent along with the function.
    by_value = name != "__main__" and not PathFinder.find_spec(name.partition(".")[0])
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((function, args, kwargs))
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def unpickled(data: bytes) -> Any:
    """Load what `cloudpickle` wrote; MXNet's arrays need NumPy semantics first."""
    if b"mxnet.numpy" in data:
        get_backend("mxnet")
    return pickle.loads(data)
