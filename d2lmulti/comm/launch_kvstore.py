"""Start MXNet's parameter server on this machine: scheduler, servers and workers.

Each is a process of its own, spawned with a fresh Python. When one fails or time runs
out, all are ended and the error shows what the first one that failed had to say.
Chapter: *parameter_server*.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ..checks import MOST_RANKS, check_count, check_kind, check_list, check_positive
from .processes import (
    Process,
    ProcessFailed,
    end,
    end_with_launcher,
    environment,
    free_port,
    spawn,
)

_START = "from d2lmulti.comm.launch_kvstore import {0}; {0}()"
_GRACE = 10  # seconds that servers have to notice that the workers are done


@dataclass
class _Process(Process):
    @property
    def rank(self) -> int:
        told = self.folder / f"{self.name}.rank"
        return int(told.read_text()) if told.exists() else int(self.name.split()[1])


def launch_kvstore(
    program: str,
    *,
    workers: int = 2,
    servers: int = 1,
    arguments: Sequence[str] = (),
    timeout: float = 60.0,
) -> list[str]:
    """Run a Python program as every worker; return what each printed, in rank order.

    `program` is source text; it makes a `KVStore` and gets `arguments` as sys.argv[1:].
    Raises `InvalidInput` for no workers, no servers and no time, `ProcessFailed` when a
    process ends with an error or `timeout` seconds are over.
    """
    check_kind("program", program, str, "a Python program's text")
    check_count("workers", workers, most=MOST_RANKS)
    check_count("servers", servers, most=MOST_RANKS)
    check_positive("timeout", timeout, "give seconds")
    for argument in check_list("arguments", arguments, "texts", least=0):
        check_kind("an argument", argument, str, "a text")
    with TemporaryDirectory(prefix="d2lmulti-") as name:
        folder = Path(name)
        (folder / "program.py").write_text(program)
        common = _environment(workers, servers)
        group: list[_Process] = []
        try:
            for role, count in (("scheduler", 1), ("server", servers)):
                command = ["-c", _START.format("serve"), role]
                for i in range(count):
                    group.append(_spawn(f"{role} {i}", command, common, folder))
            path = str(folder / "program.py")
            command = ["-c", _START.format("work"), path, *arguments]
            for i in range(workers):
                env = common | {"DMLC_ROLE": "worker"}
                group.append(_spawn(f"worker {i}", command, env, folder))
            _wait(group, timeout)
            ours = [process for process in group if process.name.startswith("worker")]
            return [p.output for p in sorted(ours, key=lambda p: p.rank)]
        finally:
            end(group)


def work() -> None:
    """Run the program of a worker (sys.argv[1:]); called in the worker's process."""
    sys.argv = sys.argv[1:]
    end_with_launcher()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            return
        # An ordinary exit would wait at a barrier for the other workers.
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        code = error.code if isinstance(error, SystemExit) else 1
        os._exit(code if isinstance(code, int) else 1)


def serve() -> None:
    """Be the scheduler or a server (sys.argv[1]); called in that process."""
    end_with_launcher()
    if sys.argv[1] == "scheduler":
        from .transports.mxnet_scheduler import schedule

        return schedule()
    from .transports import mxnet_kvstore  # only here is MXNet needed

    mxnet_kvstore.serve()


def _environment(workers: int, servers: int) -> dict[str, str]:
    env = {key: value for key, value in environment().items() if key != "DMLC_ROLE"}
    return env | {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",  # it would look for a network otherwise
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
    }


def _spawn(
    name: str, command: Sequence[str], env: dict[str, str], folder: Path
) -> _Process:
    env = env | {"D2LMULTI_RANK_FILE": str(folder / f"{name}.rank")}
    return _Process(name, spawn(name, command, env, folder).popen, folder)


def _wait(group: Sequence[_Process], timeout: float) -> None:
    end = time.monotonic() + timeout
    workers = [process for process in group if process.name.startswith("worker")]
    alive = list(group)
    while alive:
        for process in alive:
            code = process.popen.poll()
            if code:
                raise ProcessFailed(
                    f"expected every process to end well, got exit code {code} from "
                    f"{process.name}; the others were ended. Its last words:\n"
                    + process.last_words()
                )
        alive = [process for process in alive if process.popen.returncode is None]
        if not any(process in alive for process in workers):
            end = min(end, time.monotonic() + _GRACE)
            workers = []
        if alive and time.monotonic() > end:
            raise ProcessFailed(
                f"expected all processes to end within {timeout:g} seconds, got "
                f"{', '.join(process.name for process in alive)} still running; all "
                f"were ended. Last words of {alive[-1].name}:\n"
                + alive[-1].last_words()
            )
        time.sleep(0.02)
