"""Start n processes on this machine, run one function in each, collect the results.

The function is sent by cloudpickle, so one from a notebook's cell or a lambda will do.
When one process fails, all are ended, and the error shows the traceback of the one that
failed first. Chapter: *many_machines*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..checks import check_count
from .ranks import Ranks, pickled
from .spawn import ProcessFailed


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
    `process_group.py`). `backend` becomes its default backend, `threads` the threads of
    its framework. When a process fails, the group is started again up to `restarts`
    times, and the function should continue from its checkpoint. The environment and the
    level of the root logger are passed on. Between GPUs, the default engine
    `shared_memory` copies every tensor through the CPU; `engine="torch"` or `"paddle"`
    uses NCCL if each rank has a GPU of its own. With `gpus=False` the processes see no
    GPU. Raises `InvalidInput` for arguments out of range, `ProcessFailed` with the
    traceback of the rank that failed first, or, after `timeout` seconds, with who waits
    for whom.
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
