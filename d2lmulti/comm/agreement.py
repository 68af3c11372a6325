"""Every rank must make the same call; where they differ, say which ranks do what.

A collective in which one rank takes no part, or another shape, hangs in a real engine.
Here it is an error that names the ranks and their calls.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InvalidInput


def check_same(calls: Mapping[int, str], wanted: str, cure: str) -> None:
    """Raise `InvalidInput` unless all ranks (rank -> call, in words) call the same.

    >>> check_same({0: "a sum", 1: "a copy", 2: "a sum"}, "one call", "compare them")
    Traceback (most recent call last):
    d2lmulti.errors.InvalidInput: expected one call, got a sum on ranks 0, 2 and a ...
    """
    if len(set(calls.values())) > 1:
        raise InvalidInput(f"expected {wanted}, got {by_call(calls)}; {cure}")


def by_call(calls: Mapping[int, str]) -> str:
    """List the calls with their ranks: `a sum on ranks 0, 2 and a copy on rank 1`."""
    groups: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        groups.setdefault(call, []).append(rank)
    parts = [f"{call} on {name_ranks(ranks)}" for call, ranks in groups.items()]
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]


def name_ranks(ranks: list[int]) -> str:
    """Name ranks in words: `rank 3`, `ranks 0, 2`; of many, the first eight."""
    some = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {some}{more}"
