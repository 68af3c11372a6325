"""The errors of this library: what was expected, what was found, what to do.

Every error that this library raises on purpose is a `D2LMultiError`, and also the
built-in error a Python user would expect to catch (`ValueError`, `ImportError`, ...).
"""

from __future__ import annotations

from collections.abc import Mapping


def plural(n: int, noun: str) -> str:
    """Return a count with its noun: `1 device`, `2 devices`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def name_ranks(ranks: list[int]) -> str:
    """Return ranks as text: `rank 3`, `ranks 0, 2`; of many, the first eight."""
    first_eight = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {first_eight}{more}"


def by_call(calls: Mapping[int, str]) -> str:
    """Return calls with their ranks: `a sum on ranks 0, 2 and a copy on rank 1`."""
    groups: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        groups.setdefault(call, []).append(rank)
    parts = [f"{call} on {name_ranks(ranks)}" for call, ranks in groups.items()]
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]


class D2LMultiError(Exception):
    """Base of every error raised by d2lmulti."""


class InvalidInput(D2LMultiError, ValueError):
    """An argument has the wrong value, type, shape, or length."""


class PlanError(InvalidInput):
    """A plan is incorrect; the message names round (from 1), rank, and part."""


class BackendNotInstalled(D2LMultiError, ImportError):
    """A framework is requested that is not installed."""


class DeviceUnavailable(D2LMultiError, RuntimeError):
    """A device is requested that this machine does not have."""


class Diverged(D2LMultiError, ArithmeticError):
    """A loss or a weight is no longer finite."""


class DataUnavailable(D2LMultiError, OSError):
    """A data set is not in the cache and cannot be downloaded."""


class DataCorrupt(D2LMultiError, ValueError):
    """A data file is truncated, has a wrong checksum, or another format."""


class WriteFailed(D2LMultiError, OSError):
    """A file cannot be written (no space, no permission); the old one is unchanged."""


class PeerError(D2LMultiError, RuntimeError):
    """Another rank has ended, or makes a different call."""
