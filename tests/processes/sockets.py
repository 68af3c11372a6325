"""Who listens where: the sockets of a process and of all that it has started.

Apart from the tests, because processes of a launched group read it too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple


class Listener(NamedTuple):
    """A process that takes connections, and where."""

    pid: int
    address: str
    port: int


def listeners(root: int) -> list[Listener]:
    """Find all TCP sockets on which `root` or a descendant listens."""
    owners = {}
    for pid in tree(root):
        for inode in sockets_of(pid):
            owners[inode] = pid
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and inode in owners:  # LISTEN
                address, port = local.split(":")
                found.append(Listener(owners[inode], readable(address), int(port, 16)))
    return sorted(found)


def outside(found: list[Listener]) -> list[Listener]:
    """Keep those that another machine could reach."""
    return [one for one in found if not ip_address(one.address).is_loopback]


def tree(root: int) -> list[int]:
    """List a process and all that it has started, as far as it can be seen."""
    children: dict[int, list[int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it has just ended
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(pid))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def sockets_of(pid: int) -> Iterator[str]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:  # just closed
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def readable(address: str) -> str:
    """Turn the kernel's hexadecimal words into an address as people write it."""
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    return str(ip_address(b"".join(words)))
