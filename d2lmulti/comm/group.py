"""A group is the set of ranks that take part in a collective.

In one process every rank is local; in a run of n processes each process holds one.
The current group is set by the launcher only; without one, `len(data)` tensors make a
one-process group of that many ranks.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from ..checks import MOST_RANKS, check_count, check_kind
from ..errors import InvalidInput
from .engines import Engine
from .engines.local import LocalTransport
from .process_info import ProcessInfo


@dataclass(frozen=True)
class Group:
    """`size` ranks, of which `local_ranks` live in this process."""

    size: int
    local_ranks: tuple[int, ...]
    engine: Engine
    info: ProcessInfo | None = None  # where processes share it: this one's

    @property
    def is_distributed(self) -> bool:
        """Whether other processes hold some of the ranks."""
        return len(self.local_ranks) < self.size

    @property
    def leader(self) -> bool:
        """Whether this process holds rank 0, which speaks and writes for all."""
        return 0 in self.local_ranks


current_group: ContextVar[Group | None] = ContextVar("current_group", default=None)


def local_group(size: int) -> Group:
    """Make a group of `size` ranks that all live in this process."""
    size = check_count("size", size, most=MOST_RANKS)
    return Group(size, tuple(range(size)), LocalTransport())


def group_for(count: int, group: Group | None = None) -> Group:
    """Return the group in which this process holds `count` ranks.

    Order: the argument, the current group, a one-process group of `count` ranks.
    Raises `InvalidInput` when the group has another number of local ranks.
    """
    if group is None:
        group = current_group.get() or local_group(count)
    check_kind("group", group, Group, "a group of ranks", "leave it out")
    if len(group.local_ranks) != count:
        raise InvalidInput(
            f"expected one entry for each of this process's {len(group.local_ranks)} "
            f"ranks, got {count}; pass a list in rank order, one entry a rank"
        )
    return group
