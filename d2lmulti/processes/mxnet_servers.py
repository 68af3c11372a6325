"""Start MXNet's parameter server on this machine: scheduler, servers and workers.

Each is a process with a fresh Python. When one fails or time runs out, all are ended,
and the error shows the last output of the first that failed.
Chapter: *parameter_server*.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence

from ..checks import MAX_RANKS, check_count, check_positive
from .spawn import (
    Process,
    Processes,
    end_with_launcher,
    environment,
    exit_now,
    free_port,
    write_value,
)

_START = "from d2lmulti.processes.mxnet_servers import {0}; {0}()"


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
            "DMLC_NODE_HOST": "127.0.0.1",  # it would look for a network otherwise
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
        }
        env.pop("DMLC_ROLE", None)
        for role, count in (("scheduler", 1), ("server", servers)):
            for i in range(count):
                command = ["-c", _START.format("serve"), role]
                group.spawn(f"{role} {i}", command, env)
        command = ["-c", _START.format("work"), str(path), *arguments]
        env["DMLC_ROLE"] = "worker"
        ours = []
        for i in range(workers):
            env["D2LMULTI_WORKER_FILE"] = str(group.folder / f"worker {i}")
            ours.append(group.spawn(f"worker {i}", command, env))
        group.wait(lambda: not group.alive, timeout, lambda: _last_words(group))
        return [process.output for process in sorted(ours, key=_rank)]


def _last_words(group: Processes) -> str:
    process = group.alive[-1]
    return f"Last words of {process.name}:\n{process.last_words()}"


def _rank(worker: Process) -> int:
    """Return the rank that MXNet gave a worker, which `KVStore` has written down."""
    file = worker.folder / f"{worker.name}.rank"
    return int(file.read_text()) if file.exists() else int(worker.name.split()[1])


def work() -> None:
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
    """Be the scheduler or a server (sys.argv[1]); called in that process."""
    end_with_launcher()
    from . import mxnet_kvstore  # only here is MXNet needed

    mxnet_kvstore.serve(sys.argv[1])
    write_value()
