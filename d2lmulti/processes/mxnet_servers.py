"""Start MXNet's parameter server on this machine: scheduler, servers and workers.

Each is a process of its own, spawned with a fresh Python. When one fails or time runs
out, all are ended and the error shows what the first one that failed had to say.
Chapter: *parameter_server*.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from ..checks import MAX_RANKS, check_count, check_kind, check_list, check_positive
from .spawn import (
    Process,
    Processes,
    end_with_launcher,
    environment,
    exit_now,
    free_port,
    new_processes,
)

_START = "from d2lmulti.processes.mxnet_servers import {0}; {0}()"
_GRACE = 10  # seconds that servers have to notice that the workers are done


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
    check_count("workers", workers, max=MAX_RANKS)
    check_count("servers", servers, max=MAX_RANKS)
    check_positive("timeout", timeout, "give seconds")
    for argument in check_list("arguments", arguments, "texts", min_length=0):
        check_kind("an argument", argument, str, "a text")
    with new_processes() as group:
        path = group.folder / "program.py"
        path.write_text(program)
        common = _environment(workers, servers)
        for role, count in (("scheduler", 1), ("server", servers)):
            command = ["-c", _START.format("serve"), role]
            for i in range(count):
                group.spawn(f"{role} {i}", command, common)
        command = ["-c", _START.format("work"), str(path), *arguments]
        for i in range(workers):
            output = group.folder / f"worker {i}"
            env = common | {"DMLC_ROLE": "worker", "D2LMULTI_WORKER_FILE": str(output)}
            group.spawn(output.name, command, env)
        _wait(group, timeout)
        ours = [p for p in group.members if p.name.startswith("worker")]
        return [p.output for p in sorted(ours, key=_rank)]


def work() -> None:
    """Run the program of a worker (sys.argv[1:]); called in the worker's process."""
    sys.argv = sys.argv[1:]
    end_with_launcher()
    done = Path(os.environ["D2LMULTI_WORKER_FILE"] + ".done")
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        done.touch()
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            return done.touch()
        # An ordinary exit would wait at a barrier for the other workers.
        traceback.print_exc()
        code = error.code if isinstance(error, SystemExit) else 1
        exit_now(code if isinstance(code, int) else 1)


def serve() -> None:
    """Be the scheduler or a server (sys.argv[1]); called in that process."""
    end_with_launcher()
    from . import mxnet_kvstore  # only here is MXNet needed

    mxnet_kvstore.serve(sys.argv[1])


def _environment(workers: int, servers: int) -> dict[str, str]:
    env = {key: value for key, value in environment().items() if key != "DMLC_ROLE"}
    return env | {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",  # it would look for a network otherwise
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
    }


def _rank(worker: Process) -> int:
    path = _file(worker, ".rank")
    return int(path.read_text()) if path.exists() else int(worker.name.split()[1])


def _file(worker: Process, ending: str) -> Path:
    return worker.folder / f"{worker.name}{ending}"


def _wait(group: Processes, timeout: float) -> None:
    workers = [p for p in group.members if p.name.startswith("worker")]

    def failed(process: Process) -> bool:
        if process.ended is None:
            return False
        busy = [worker for worker in workers if not _file(worker, ".done").exists()]
        # The others end well only after all workers have.
        early = process in busy if process in workers else bool(busy)
        return process.ended != 0 or early

    def last_words(alive: Sequence[Process]) -> str:
        return f"Last words of {alive[-1].name}:\n{alive[-1].last_words()}"

    for awaited, seconds in ((workers, timeout), (group.members, _GRACE)):
        for process in group.wait(awaited, seconds, failed, last_words):
            raise process.failure()
