"""The store in which Paddle's ranks meet keeps the addresses of two groups apart."""

from __future__ import annotations

import socket
import struct
from contextlib import closing

from d2lmulti.processes.paddle_store import StoreServer

_GET, _SET, _WAIT = 1, 3, 4


class Rank:
    """Paddle's client as one rank uses it: `SET` has no answer, the others have."""

    def __init__(self, server: StoreServer) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), 10)

    def close(self) -> None:
        self.socket.close()

    def say(self, command: int, key: bytes) -> None:
        self.socket.sendall(struct.pack("=iQ", command, len(key)) + key)

    def tell(self, key: bytes, value: bytes) -> None:
        self.say(_SET, key)
        self.socket.sendall(struct.pack("=Q", len(value)) + value)

    def arrives(self, seconds: float) -> bool:
        """Whether what this rank waits for is there within so many seconds."""
        self.socket.settimeout(seconds)
        try:
            return len(self.socket.recv(4)) == 4
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(10)

    def ask(self, key: bytes) -> bytes:
        self.say(_WAIT, key)
        assert self.arrives(10)
        self.say(_GET, key)
        (length,) = struct.unpack("=Q", self.socket.recv(8))
        return self.socket.recv(length)


def test_a_late_rank_is_waited_for_where_its_last_group_has_left_an_address() -> None:
    with (
        closing(StoreServer()) as server,
        closing(Rank(server)) as a,
        closing(Rank(server)) as b,
    ):
        for group in (b"/0", b"/10"):
            for i, rank in enumerate((a, b)):  # both have told the first of their keys
                rank.tell(group + b"/%d" % i, b"first" + group)
            assert a.ask(group + b"/1") == b"first" + group
            a.tell(b"/0", b"a" + group)
            a.say(_WAIT, b"/1")
            assert not a.arrives(0.05)  # b is late: nothing stale comes in its place
            b.tell(b"/1", b"b" + group)
            assert a.arrives(10)
            a.say(_GET, b"/1")
            assert a.socket.recv(8 + len(b"b" + group))[8:] == b"b" + group
            assert b.ask(b"/0") == b"a" + group
