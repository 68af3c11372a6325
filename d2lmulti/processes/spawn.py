"""Processes of a group: started as new Python processes, monitored, ended together.

A framework's threads do not survive a fork, so each process is a new Python process. It
leads a process group of its own: killing the group also ends its child processes.
Chapter: *many_machines*.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from ..errors import D2LMultiError

_LAST_LINES = 20
_GRACE = 0.2  # seconds for other processes to fail for the same reason
_LONG_GRACE = 5.0  # while only processes that waited for another one have failed
_PREFIX = "d2lmulti-"
_PR_SET_PDEATHSIG = 1


class ProcessFailed(D2LMultiError, RuntimeError):
    """A process of a launched group ended with an error or did not end in time."""


@dataclass
class Process:
    """One process and the folder that collects its output."""

    name: str
    popen: subprocess.Popen[bytes]
    folder: Path

    @property
    def ended(self) -> int | None:
        """Return its exit code, or None while it runs."""
        if self.popen.returncode is None and self.popen.poll() is not None:
            self.kill()  # its children, now: the process id may be reused later
        return self.popen.returncode

    @property
    def value(self) -> Path:
        """Return the file that it writes at the end; see `write_value`."""
        return self.folder / f"{self.name}.value"

    @property
    def failed(self) -> bool:
        """Return whether it has ended by an error, or before its work was done."""
        if self.ended is None:
            return False
        return self.ended != 0 or not self.value.exists()

    @property
    def blame(self) -> tuple[float, ...]:
        """Return a sort key of failures: killed, own error, waiting for others."""
        report = self.folder / f"{self.name}.failed"
        if not report.exists():
            return 0, 0
        return tuple(map(float, report.read_text().split()))

    @property
    def output(self) -> str:
        """Return its stdout so far."""
        return (self.folder / f"{self.name}.out").read_text("utf-8", errors="replace")

    @property
    def errors(self) -> str:
        """Return its stderr so far."""
        return (self.folder / f"{self.name}.err").read_text("utf-8", errors="replace")

    def last_words(self) -> str:
        """Return the last lines of its output, indented for an error message."""
        lines = [*self.output.splitlines(), *self.errors.splitlines()][-_LAST_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (it printed nothing)"

    def failure(self) -> ProcessFailed:
        """Return the error for a process that has ended unexpectedly."""
        code = self.ended or 0
        ending = f"exit code {code}"
        if not code:
            ending += " before its work was done"
        elif -code == signal.SIGKILL:
            ending = "SIGKILL (it was killed)"
        elif code < 0:
            ending = signal.Signals(-code).name
        return ProcessFailed(
            f"expected every process to end well, got {ending} from {self.name}; the "
            f"others were ended. Its last words:\n{self.last_words()}"
        )

    def write(self, line: str) -> None:
        """Write a line to its standard input, unless it has ended."""
        with contextlib.suppress(BrokenPipeError):
            if self.popen.stdin:
                self.popen.stdin.write(f"{line}\n".encode())

    def kill(self) -> None:
        """Kill it and the child processes that are still in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all have ended
            if sys.platform == "win32":
                self.popen.kill()
            else:
                os.killpg(self.popen.pid, signal.SIGKILL)


class Processes:
    """The processes of one launch and the folder they share; use it with `with`.

    The folder has the mode 0700, so only this user can write the pickles that they
    load. It is in memory where the system has a file system there.
    """

    def __init__(self) -> None:
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self._temporary = TemporaryDirectory(prefix=_PREFIX, dir=memory)
        self.folder = Path(self._temporary.name)
        self.members: list[Process] = []

    def spawn(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
    ) -> Process:
        """Start a new Python process with these arguments; its output goes to files.

        The process must first call `end_with_launcher()`, and `write_value` when its
        work is done.
        """
        with (
            open(self.folder / f"{name}.out", "wb") as out,
            open(self.folder / f"{name}.err", "wb") as err,
        ):
            popen = subprocess.Popen(
                [sys.executable, *command],
                env={
                    **env,
                    "D2LMULTI_NAME": name,
                    "D2LMULTI_FOLDER": str(self.folder),
                    "D2LMULTI_LAUNCHER": str(os.getpid()),
                },
                bufsize=0,
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C reaches the launcher, which ends all
            )
        self.members.append(Process(name, popen, self.folder))
        return self.members[-1]

    @property
    def alive(self) -> list[Process]:
        """Return the processes that still run."""
        return [process for process in self.members if process.ended is None]

    def wait(
        self, done: Callable[[], bool], timeout: float, details: Callable[[], str]
    ) -> None:
        """Wait until `done()`.

        Raises `ProcessFailed` with the last words of the process that failed first, or,
        after `timeout` seconds, with the `details`.
        """
        until, pause = time.monotonic() + timeout, 0.001
        while True:
            finished = done()
            if self._failed:  # looked at last: they may have ended since the last look
                break
            if finished:
                return
            if time.monotonic() > until:
                alive = ", ".join(process.name for process in self.alive)
                stopped = [p.name for p in self.alive if state_of(p.popen.pid) == "T"]
                also = f"Stopped by a signal: {', '.join(stopped)}. " if stopped else ""
                raise ProcessFailed(
                    f"expected all processes to end within {timeout:g} seconds, got "
                    f"{alive} still running; all were ended. {also}{details()}"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        self._let_others_fail()
        raise min(self._failed, key=lambda process: process.blame).failure()

    @property
    def _failed(self) -> list[Process]:
        return [process for process in self.members if process.failed]

    def _let_others_fail(self) -> None:
        """Wait briefly for other failures, and longer for the one that caused them.

        A process that was waiting for another one may end before that one does.
        """
        began = time.monotonic()
        while self.alive:
            guilty = any(not process.blame[0] for process in self._failed)
            if time.monotonic() > began + (_GRACE if guilty else _LONG_GRACE):
                return
            time.sleep(0.01)

    def end(self) -> None:
        """Kill the processes that still run, and remove the folder."""
        for process in self.members:
            if process.ended is None:
                process.kill()
                process.popen.wait()
            if process.popen.stdin:
                process.popen.stdin.close()
        self._temporary.cleanup()
        # Remove semaphores that only one of two processes has opened.
        word = self.folder.name.removeprefix(_PREFIX)
        for name in Path("/dev/shm").glob(f"sem.d2l-{word}-*"):
            name.unlink(missing_ok=True)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


def end_with_launcher() -> None:
    """End this process when its launcher ends, even by SIGKILL (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ["D2LMULTI_LAUNCHER"]):  # it has ended already
        os._exit(1)


def write_value(value: bytes = b"") -> None:
    """Write this process's result atomically."""
    file = _own_file("value")
    file.with_suffix(".new").write_bytes(value)
    file.with_suffix(".new").rename(file)


def write_failure(waiting: bool) -> None:
    """Record when this process failed, and whether it was waiting for another one."""
    _own_file("failed").write_text(f"{waiting:d} {time.monotonic()}")


def _own_file(ending: str) -> Path:
    return Path(
        os.environ["D2LMULTI_FOLDER"], f"{os.environ['D2LMULTI_NAME']}.{ending}"
    )


def exit_now(status: int) -> NoReturn:
    """End this process without its exit handlers, which may wait for other ranks."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also on a full disk
        os._exit(status)


def environment() -> dict[str, str]:
    """Return a child's environment: this one, with the same module path."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    path = [root, *(os.path.abspath(entry) for entry in sys.path)]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def free_port() -> int:
    """Return a port of this machine on which no process listens.

    It is below the range that systems assign: a port in that range could belong to
    another process by the time it is used.
    """
    for _ in range(100):
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("no free port among 100 between 20,000 and 32,000")


def loopback() -> str:
    """Return the name of the loopback interface: lo, or lo0 on a Mac."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")


def state_of(pid: int) -> str:
    """Return the letter of a process's state (R, S, T, ...); empty if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended, or the system has no such files
        return ""
    return text.rpartition(")")[2].split()[0]
