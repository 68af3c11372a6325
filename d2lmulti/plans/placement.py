"""The placement of parameters, or parts of them, on servers.

A placement is a pure function of the parameters' sizes and the number of servers. Every
element is in exactly one part, and every part on one server.
Chapter: *parameter_server*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..checks import MAX_RANKS, check_choice, check_count, check_list
from .rounds import even_bounds


class ServerShard(NamedTuple):
    """Elements first..last-1 of the flattened parameter, stored by one server."""

    parameter: int
    first: int
    last: int
    server: int


Placement = Callable[[Sequence[int], int], list[ServerShard]]


def round_robin(sizes: Sequence[int], servers: int) -> list[ServerShard]:
    """Assign whole parameters to the servers in turn (TensorFlow's default).

    >>> server_sizes(round_robin([100, 1, 100, 1], 2), 2)
    [200, 2]
    """
    return [ServerShard(i, 0, size, i % servers) for i, size in enumerate(sizes)]


def greedy(sizes: Sequence[int], servers: int) -> list[ServerShard]:
    """Assign each whole parameter, largest first, to the server that holds least.

    >>> server_sizes(greedy([100, 1, 100, 1], 2), 2)
    [101, 101]
    """
    held = [0] * servers
    parts = []
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        server = held.index(min(held))
        held[server] += sizes[i]
        parts.append(ServerShard(i, 0, sizes[i], server))
    return sorted(parts)


def cut(sizes: Sequence[int], servers: int) -> list[ServerShard]:
    """Concatenate all parameters and cut the result into equal pieces.

    >>> cut([3, 2], 2)
    [ServerShard(parameter=0, first=0, last=3, server=0), ServerShard(parameter=1, ...)]
    """
    parts = []
    bounds = even_bounds(sum(sizes), servers)
    start = 0
    for i, size in enumerate(sizes):
        for server, (first, last) in enumerate(bounds):
            a, b = max(first, start) - start, min(last, start + size) - start
            if a < b:
                parts.append(ServerShard(i, a, b, server))
        start += size
    return parts


#: Name -> how parameters are distributed over servers.
PLACEMENTS: dict[str, Placement] = {
    "round_robin": round_robin,
    "greedy": greedy,
    "cut": cut,
}


def shard_to_servers(
    sizes: Sequence[int], servers: int, placement: str = "greedy"
) -> list[ServerShard]:
    """Place parameters of these sizes (in elements), ordered by parameter and element.

    Raises `InvalidInput` for no servers, no parameters and an unknown placement.
    """
    servers = check_count("servers", servers, max=MAX_RANKS, hint="use servers=1")
    check_list("sizes", sizes, "numbers of elements, one per parameter")
    return PLACEMENTS[check_choice("placement", placement, PLACEMENTS)](sizes, servers)


def server_sizes(parts: Sequence[ServerShard], servers: int) -> list[int]:
    """Count the elements that each server stores."""
    held = [0] * servers
    for part in parts:
        held[part.server] += part.last - part.first
    return held
