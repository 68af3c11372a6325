"""Processes of a group: started with a fresh Python, watched, ended together.

A framework's threads do not survive a fork, so each process is spawned. Each leads a
process group of its own, which takes what it started itself along when it is ended, and
ends by itself when its launcher dies, however that happens. Chapter: *many_machines*.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import D2LMultiError

_LAST_LINES = 20


class ProcessFailed(D2LMultiError, RuntimeError):
    """A process of a launched group ended with an error or did not end in time."""


@dataclass
class Process:
    """One process and the folder in which its output collects."""

    name: str
    popen: subprocess.Popen[bytes]
    folder: Path

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return (self.folder / f"{self.name}.out").read_text("utf-8", errors="replace")

    @property
    def errors(self) -> str:
        """What it has written to stderr so far."""
        return (self.folder / f"{self.name}.err").read_text("utf-8", errors="replace")

    def last_words(self) -> str:
        """Give the last lines of both, indented, for an error message."""
        lines = [*self.output.splitlines(), *self.errors.splitlines()][-_LAST_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (it printed nothing)"


def spawn(
    name: str, command: Sequence[str], env: Mapping[str, str], folder: Path
) -> Process:
    """Start a fresh Python with these arguments; its output goes to files.

    The process must call `end_with_launcher()` first of all: its stdin is a pipe that
    nobody writes to, and whose end is the launcher's end.
    """
    with (
        open(folder / f"{name}.out", "wb") as out,
        open(folder / f"{name}.err", "wb") as err,
    ):
        popen = subprocess.Popen(
            [sys.executable, *command],
            env={**env, "D2LMULTI_FOLDER": str(folder)},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which ends all
        )
    return Process(name, popen, folder)


def end(group: Sequence[Process]) -> None:
    """Kill what still runs, and what those processes started, and wait for it."""
    for process in group:
        if process.popen.poll() is None:
            _kill_tree(process.popen.pid)
    for process in group:
        process.popen.wait()
        if process.popen.stdin:
            process.popen.stdin.close()


def end_with_launcher() -> None:
    """End this process and its children when the launcher dies, even by SIGKILL."""
    pipe = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_wait_for_end, args=(pipe,), daemon=True).start()


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
    """Find a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_private(folder: Path) -> None:
    """Refuse a folder in which another user could have put a file to unpickle.

    Raises `D2LMultiError`.
    """
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_mode & 0o077 or (
        hasattr(os, "getuid") and about.st_uid != os.getuid()
    ):
        raise D2LMultiError(
            f"expected {folder} to be this user's own folder with the mode 0700, got "
            f"one of user {about.st_uid} with {stat.filemode(about.st_mode)}; what it "
            "holds is not read"
        )


def loopback() -> str:
    """Name the network interface that ends in this machine: lo, or lo0 on a Mac."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")


def state_of(pid: int) -> str:
    """Give the letter of a process's state (R, S, T, ...), or nothing if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # another system, or it has just ended
        return ""
    return text.rpartition(")")[2].split()[0]


def _wait_for_end(pipe: int) -> None:
    while os.read(pipe, 1):  # an empty answer is the end of the pipe
        continue
    # Nobody else is left to clean up.
    shutil.rmtree(os.environ["D2LMULTI_FOLDER"], ignore_errors=True)
    _kill_tree(os.getpid())


def _kill_tree(pid: int) -> None:
    if sys.platform == "win32":
        os.kill(pid, signal.SIGTERM)
    else:
        os.killpg(pid, signal.SIGKILL)
