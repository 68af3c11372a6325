"""Run a program on two ranks, as `torchrun` does, and print what each rank wrote.

The processes are forked from one that has imported PyTorch, so they start immediately.
No rank is ended because another one has failed, so that all their messages are shown.
Chapter: *failures*.
"""

from __future__ import annotations

import faulthandler
import os
import re
import runpy
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from multiprocessing import forkserver, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from d2lmulti.processes.spawn import free_port, loopback

_lab = get_context("forkserver")
_STACK = re.compile("Traceback|(Current t|T)hread 0x")
_LOG = re.compile(r"(\[rank\d\]:)?\[[EW]\d{4} |Exception raised from|frame #|<omitting")
_LOST = re.compile("Connection (?:closed|reset) by peer|Broken pipe")
said: dict[str, str] = {}
"""The output of each job, by its program, arguments, and variables."""
_shown: set[str] = set()  # messages of a lost connection that are on the page


Env = dict[str, str]


class Rank(NamedTuple):
    """One rank of a job: the job's name, its number, its process, and its log file."""

    name: str
    number: int
    process: Any
    log: Path


@cache
def _logs() -> TemporaryDirectory[str]:
    """Make the folder of the logs, which is removed when this Python ends."""
    return TemporaryDirectory(prefix="d2lmulti-lab-")


def warm_up() -> None:
    """Start to import PyTorch in the process from which all ranks are forked."""
    _lab.set_forkserver_preload(["torch", "torch._dynamo", __name__])
    # Ranks inherit this: one that is asked for its stack before it can answer lives on.
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGUSR1, before)


def start(
    program: str, *arguments: str, ranks: Sequence[int] = (0, 1), **variables: str
) -> list[Rank]:
    """Start a program on the given ones of two ranks, with environment variables."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared = {"WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": loopback()} | where | variables
    name = " ".join([Path(program).name, *arguments, *variables.values()])
    jobs = []
    folder = Path(_logs().name)
    for rank in ranks:
        number = len(list(folder.iterdir()))
        log = folder / f"{number}-{Path(program).stem}-{rank}.log"
        log.touch()
        given = (str(log), program, arguments, shared | {"RANK": str(rank)})
        process = _lab.Process(target=_run, args=given, daemon=True)
        process.start()
        jobs.append(Rank(name, rank, process, log))
    return jobs


def _run(log: str, program: str, arguments: tuple[str, ...], env: Env) -> None:
    """Run the program in this process; its output goes to a file."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    os.environ.update(env)
    faulthandler.register(signal.SIGUSR1, 2)
    import_module("torch.distributed").set_debug_level_from_env()
    sys.argv = [program, *arguments]
    try:
        runpy.run_path(program, run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def show(jobs: list[Rank], wait: float = 60) -> None:
    """Print what each rank wrote, except stacks, and how it ended; add it to `said`."""
    until = time.monotonic() + wait
    text = []
    for _, rank, process, log in jobs:
        process.join(max(0, until - time.monotonic()))
        code = process.exitcode
        written = [_once(line) for line in _messages(log.read_text())]
        if code is None:
            written.append("(still running)")
        elif code < 0:
            written.append(f"(ended by {signal.Signals(-code).name})")
        text += [f"rank {rank}: {line}" for line in written]
    for _, _, process, _ in jobs:
        process.kill()
        process.join()
    for line in text:
        sys.stdout.write(textwrap.fill(line, 70, subsequent_indent=" " * 4) + "\n")
    said[jobs[0].name] = "\n".join(text)


def _once(line: str) -> str:
    """Return a message, or a note for another message of a lost connection."""
    if not _LOST.search(line) or not _shown:
        _shown.update(_LOST.findall(line))
        return line
    return "(connection lost: the message above, or one of its variants)"


def _messages(log: str) -> list[str]:
    """Return the lines of a log without stacks, tracebacks, and PyTorch's own log."""
    lines = []
    inside = False
    for line in log.splitlines():
        inside = bool(_STACK.match(line)) or (inside and line.startswith(" "))
        if line.strip() and not inside and not _LOG.match(line):
            lines.append(line)
    return lines


def stacks(jobs: list[Rank], calls: Sequence[str]) -> None:
    """Print each rank's stack, requested by SIGUSR1, once it is in the call."""
    for (_, rank, process, log), call in zip(jobs, calls, strict=True):
        frames: list[tuple[str, str, str]] = []
        until = time.monotonic() + 30
        while call not in [name for *_, name in frames] and time.monotonic() < until:
            time.sleep(0.2)
            os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.1)
            stack = log.read_text().rpartition("(most recent call first)")[2]
            frames = re.findall(r'File "(.*?)", line (\d+) in (\S+)', stack)
        shown = []
        for file, line, name in frames:
            if file.startswith("../"):
                shown.append(f"{name} (line {line})")
                if name == "<module>":
                    break
            elif not name.startswith("_") and name != "wrapper":
                shown.append(name)
        sys.stdout.write(f"rank {rank}: {' < '.join(shown)}\n")
