"""Where Paddle's ranks of one machine meet: a key-value server that strangers miss.

Paddle's own TCPStore listens on all interfaces and believes whoever connects. This one
speaks its protocol, so that Paddle's client can use it, on the loopback address, and
answers only processes of the same launcher. Chapter: *many_machines*.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Condition, Thread
from typing import BinaryIO

from .process_info import ProcessInfo

# Paddle's numbers of commands, and of its two kinds of answer.
_ADD, _GET, _CHECK, _SET, _WAIT = range(5)
_ARRIVED, _THERE, _MISSING = range(1, 4)
_COMMAND, _NUMBER, _LENGTH = map(struct.Struct, ("=i", "=q", "=Q"))


def meet(file: Path, rank: int, seconds: float) -> tuple[StoreServer | None, int]:
    """Start the server on rank 0; give it, and its port, which `file` tells the others.

    Raises `TimeoutError` where rank 0 has not told it in so many seconds.
    """
    if not rank:
        server = StoreServer()
        new = file.with_suffix(".new")
        new.write_text(str(server.port))
        new.rename(file)  # nobody reads half a number
        return server, server.port
    until = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() > until:
            raise TimeoutError("rank 0 has not started its store")
        time.sleep(0.01)
    return None, int(file.read_text())


class StoreServer:
    """A dictionary that ranks share: add, get, check, set, wait; a thread for each."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._values: dict[bytes, bytes] = {}
        self._changed = Condition()
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, (_, port) = self._listener.accept()
            except OSError:  # closed
                return
            if is_sibling(port, self.port):
                Thread(target=self._serve, args=(client,), daemon=True).start()
            else:
                client.close()
                logging.getLogger(__name__).warning(
                    "refused a connection to Paddle's store: not from a rank of this "
                    "group"
                )

    def _serve(self, client: socket.socket) -> None:
        group = b""  # that this rank is about to join
        with client, client.makefile("rb") as stream:
            try:
                while True:
                    (command,) = _COMMAND.unpack(_exactly(stream, _COMMAND.size))
                    key = _text(stream)
                    if command == _SET and key.count(b"/") == 2:
                        group = key.rpartition(b"/")[0]
                    self._answer(client, stream, command, _of_group(group, key))
            except (EOFError, OSError):  # this rank has gone, which others will tell
                return

    def _answer(
        self, client: socket.socket, stream: BinaryIO, command: int, key: bytes
    ) -> None:
        with self._changed:
            if command == _ADD:
                (more,) = _NUMBER.unpack(_exactly(stream, _NUMBER.size))
                total = int(self._values.get(key, b"0")) + more
                self._values[key] = b"%d" % total
                client.sendall(_NUMBER.pack(total))
            elif command == _SET:
                self._values[key] = _text(stream)
            elif command == _GET:
                value = self._values[key]  # its client has waited for it
                client.sendall(_LENGTH.pack(len(value)) + value)
            elif command == _CHECK:
                there = key in self._values
                client.sendall(_COMMAND.pack(_THERE if there else _MISSING))
            elif command == _WAIT:
                self._changed.wait_for(lambda: key in self._values)
                client.sendall(_COMMAND.pack(_ARRIVED))
            self._changed.notify_all()


def _of_group(group: bytes, key: bytes) -> bytes:
    """Give a rank's second key its group's name, which Paddle leaves out.

    A rank tells its addresses twice for each group, as `/GROUP/RANK` and as `/RANK`.
    Whoever asks for the latter before it is there anew would find the group's before,
    and nobody listens there any more.
    """
    return group + b"/again" + key if key[1:].isdigit() else key


def is_sibling(port: int, ours: int) -> bool:
    """Tell whether the connection from `port` to our port is a sibling process's.

    Where the system has no /proc it cannot be told; the loopback address must do.
    """
    table = Path("/proc/net/tcp")
    if not table.exists():
        return True
    ends = [f"0100007F:{port:04X}", f"0100007F:{ours:04X}"]
    rows = (line.split() for line in table.read_text().splitlines()[1:])
    files = [f"socket:[{row[9]}]" for row in rows if row[1:3] == ends]
    return any(_holds(pid, file) for file in files for pid in _siblings())


def _siblings() -> Iterator[str]:
    """The numbers of all processes that have this one's parent, this one included."""
    parent = str(os.getppid())
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it has just ended
            continue
        if stat.rpartition(")")[2].split()[1] == parent:
            yield pid


def _holds(pid: str, what: str) -> bool:
    """Tell whether a process has this file open."""
    try:
        files = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has just ended, or is another user's
        return False
    for file in files:
        try:
            if os.readlink(file) == what:
                return True
        except OSError:  # just closed
            continue
    return False


def _text(stream: BinaryIO) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return _exactly(stream, length)


def _exactly(stream: BinaryIO, count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise EOFError
    return found


def wait_for_listener(port: int, seconds: float = 20.0) -> None:
    """Wait until someone listens on a port of this machine: Paddle retries slowly."""
    table, until = Path("/proc/net/tcp"), time.monotonic() + seconds
    ending = f":{port:04X}"
    while table.exists() and time.monotonic() < until:
        rows = (line.split() for line in table.read_text().splitlines()[1:])
        if any(row[1].endswith(ending) and row[3] == "0A" for row in rows):
            return
        time.sleep(0.02)


def complete_environment(info: ProcessInfo) -> None:
    """Say in Paddle's words what another launcher said in its own."""
    words = {
        "PADDLE_TRAINER_ID": str(info.rank),
        "PADDLE_TRAINERS_NUM": str(info.size),
        "PADDLE_CURRENT_ENDPOINT": f"127.0.0.1:{info.rank}",  # only has to be there
    }
    if "MASTER_ADDR" in os.environ:
        address = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        words["PADDLE_MASTER"] = ":".join(address)
    for name, value in words.items():
        os.environ.setdefault(name, value)
