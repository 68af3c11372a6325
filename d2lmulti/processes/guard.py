"""The guard of a launch: what ends its processes when their launcher is killed.

Nobody can clean up after his own SIGKILL, and a stopped process cannot even end itself.
So a small process beside the launcher waits for its end, by a pipe, and then kills all
process groups of which it was told, and removes their folder. It runs this file alone.
Chapter: *many_machines*.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path


class Guard:
    """The launcher's end: `watch` every new process, and `dismiss` it in the end."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-I", "-S", __file__, str(folder), str(os.getpid())]
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what is sent to the launcher's group misses it
        )

    def watch(self, pid: int) -> None:
        """End the process group of this number when the launcher dies."""
        if self._popen.stdin:
            self._popen.stdin.write(b"%d\n" % pid)
            self._popen.stdin.flush()

    def dismiss(self) -> None:
        """End the guard, because all that it guards has ended."""
        self._popen.kill()
        self._popen.wait()
        if self._popen.stdin:
            self._popen.stdin.close()


def guard(folder: str, launcher: int) -> None:
    """Wait for the end of the launcher, whoever else holds its end of the pipe."""
    message = b""
    while os.getppid() == launcher:
        if select.select([0], [], [], 1.0)[0]:
            more = os.read(0, 4096)
            if not more:
                break
            message += more
    for pid in message.split():
        try:
            os.killpg(int(pid), signal.SIGKILL)  # it reaches stopped ones too
        except ProcessLookupError:  # it has ended before
            continue
    shutil.rmtree(folder, ignore_errors=True)
    remove_semaphores(Path(folder))


def word_of(folder: Path) -> str:
    """Give the random word in a launch's folder, which names its semaphores too."""
    return folder.name.rpartition("-")[2]


def remove_semaphores(folder: Path) -> None:
    """Remove the names of semaphores that only one of two processes has opened.

    Linux has them as files; on a Mac they stay until it starts anew.
    """
    for file in Path("/dev/shm").glob(f"sem.d2l-{word_of(folder)}-*"):
        file.unlink(missing_ok=True)


if __name__ == "__main__":
    guard(sys.argv[1], int(sys.argv[2]))
