"""Processes of a group: started with a fresh Python, watched, ended together.

A framework's threads do not survive a fork, so each process is spawned. Each leads a
process group of its own, which takes what it started itself along when it is ended. A
guard ends all when the launcher dies, however that happens. Chapter: *many_machines*.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..errors import D2LMultiError
from .guard import Guard
from .private_folder import private_folder

_LAST_LINES = 20
_LOOK_EVERY = 0.5  # seconds
_LOOKS = 16  # of a debugger's stop (t, not T) nothing is said
_PR_SET_PDEATHSIG = 1


class ProcessFailed(D2LMultiError, RuntimeError):
    """A process of a launched group ended with an error or did not end in time."""


@dataclass
class Process:
    """One process and the folder in which its output collects."""

    name: str
    popen: subprocess.Popen[bytes]
    folder: Path

    @property
    def ended(self) -> int | None:
        """Its exit code, or None as long as it runs; its children end with it."""
        if self.popen.returncode is None and self.popen.poll() is not None:
            _kill_tree(self.popen.pid)  # at once: nobody else has this number yet
        return self.popen.returncode

    def ending(self) -> str:
        """Say how it has ended, where it should not have."""
        code = self.ended
        if not code:
            return "exit code 0 before its work was done (by os._exit?)"
        if code < 0 and -code in {*signal.Signals}:
            killed = " (it was killed)" if -code == signal.SIGKILL else ""
            return f"{signal.Signals(-code).name}{killed}"
        return f"exit code {code}"

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._read("out")

    @property
    def errors(self) -> str:
        """What it has written to stderr so far."""
        return self._read("err")

    def _read(self, suffix: str) -> str:
        file = self.folder / f"{self.name}.{suffix}"
        if not file.exists():  # the function removed it
            return ""
        return file.read_text("utf-8", errors="replace")

    def failure(self) -> ProcessFailed:
        """Make the error of a process that has ended, where it should not have."""
        return ProcessFailed(
            f"expected every process to end well, got {self.ending()} from "
            f"{self.name}; the others were ended. Its last words:\n{self.last_words()}"
        )

    def last_words(self) -> str:
        """Give the last lines of both, indented, for an error message."""
        lines = [*self.output.splitlines(), *self.errors.splitlines()][-_LAST_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (it printed nothing)"


@contextmanager
def new_processes() -> Iterator[Processes]:
    """Make a private folder for a group of processes; end all in it, come what may."""
    with private_folder() as folder:
        group = Processes(folder)
        try:
            yield group
        finally:
            group.end()


class Processes:
    """The processes of a launch and their private folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members: list[Process] = []
        self._guard = Guard(folder)
        self._stopped: Counter[str] = Counter()
        self._next_look = 0.0

    def spawn(
        self, name: str, command: Sequence[str], env: Mapping[str, str]
    ) -> Process:
        """Start a fresh Python with these arguments; its output goes to files.

        The process must call `end_with_launcher()` first of all.
        """
        with (
            open(self.folder / f"{name}.out", "wb") as out,
            open(self.folder / f"{name}.err", "wb") as err,
        ):
            popen = subprocess.Popen(
                [sys.executable, *command],
                env={
                    **env,
                    "D2LMULTI_FOLDER": str(self.folder),
                    "D2LMULTI_LAUNCHER": str(os.getpid()),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C reaches the launcher, which ends all
            )
        process = Process(name, popen, self.folder)
        self.members.append(process)
        self._guard.watch(popen.pid)
        return process

    @property
    def alive(self) -> list[Process]:
        """Those that still run."""
        return [process for process in self.members if process.ended is None]

    def wait(
        self,
        awaited: Sequence[Process],
        timeout: float,
        failed: Callable[[Process], bool],
        more: Callable[[list[Process]], str],
    ) -> list[Process]:
        """Wait until these have ended, or any has failed; give those that failed.

        Raises `ProcessFailed` for one that was stopped, and for any that is not ready
        in `timeout` seconds, with what `more` has to say of those that still run.
        """
        until = time.monotonic() + timeout
        while alive := [process for process in awaited if process.ended is None]:
            if any(map(failed, self.members)):
                break
            if stopped := self.stopped():
                raise ProcessFailed(
                    f"expected every process to go on, got {_names(stopped)} stopped "
                    f"by a signal (such as SIGSTOP); all were ended. {more(alive)}"
                )
            if time.monotonic() > until:
                stopped = [p for p in alive if state_of(p.popen.pid) == "T"]
                also = f"Stopped by a signal: {_names(stopped)}. " if stopped else ""
                raise ProcessFailed(
                    f"expected all processes to end within {timeout:g} seconds, got "
                    f"{_names(alive)} still running; all were ended. {also}"
                    + more(alive)
                )
            time.sleep(0.01)
        return list(filter(failed, self.members))

    def stopped(self) -> list[Process]:
        """Give those that a signal has stopped, and that stay so; look now and then.

        Looks are counted, not seconds: whoever suspends the launcher too, and wakes it
        first, does no harm.
        """
        if time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + _LOOK_EVERY
            for process in self.members:
                stopped = process.ended is None and state_of(process.popen.pid) == "T"
                looks = self._stopped[process.name] + 1
                self._stopped[process.name] = looks if stopped else 0
        return [p for p in self.members if self._stopped[p.name] >= _LOOKS]

    def end(self) -> None:
        """Kill what still runs, and what those processes started, and wait for it."""
        for process in self.alive:
            _kill_tree(process.popen.pid)
            process.popen.wait()
        self._guard.dismiss()


def _names(processes: Sequence[Process]) -> str:
    return ", ".join(process.name for process in processes)


def end_with_launcher() -> None:
    """See to it that this process ends when its launcher dies, even by SIGKILL.

    The guard does that too, and for what this process starts; but a launcher may die
    before it has told the guard.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ["D2LMULTI_LAUNCHER"]):  # it is dead already
        os._exit(1)


def exit_now(status: int) -> NoReturn:
    """End this process without its exit handlers, which may wait for others."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # whatever a full disk does to its last words
        os._exit(status)


def environment() -> dict[str, str]:
    """Give a child's environment: this one, with the modules that are found here."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    path = [root, *(os.path.abspath(entry) for entry in sys.path)]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def free_port() -> int:
    """Find a port of this machine that nobody listens on.

    It lies below those that a system deals out by itself. One of these could be another
    process's by the time that it is used, which those who wait for it would disturb.
    """
    tries = 100
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                tries -= 1
                if not tries:  # no other would do either
                    raise
            else:
                return port


def loopback() -> str:
    """Name the network interface that ends in this machine: lo, or lo0 on a Mac."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")


def state_of(pid: int) -> str:
    """Give the letter of a process's state (R, S, T, ...), or nothing if unknown."""
    if not os.path.isdir("/proc/self"):  # a Mac
        command = ["ps", "-o", "state=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True, text=True).stdout[:1]
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has just ended
        return ""
    return text.rpartition(")")[2].split()[0]


def _kill_tree(pid: int) -> None:
    """Kill a process and its children, as far as they stay in its process group."""
    try:
        if sys.platform == "win32":
            os.kill(pid, signal.SIGTERM)
        else:
            os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # all have ended (a Mac: zombies)
        return
