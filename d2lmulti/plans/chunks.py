"""Cutting a length into parts as evenly as possible, with nothing dropped."""

from __future__ import annotations


def even_bounds(total: int, parts: int) -> list[tuple[int, int]]:
    """Cut range(total) into `parts` neighbouring (first, last) pairs.

    The first `total % parts` parts are one element longer; parts may be empty.

    >>> even_bounds(10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    size, longer = divmod(total, parts)
    starts = [i * size + min(i, longer) for i in range(parts + 1)]
    return list(zip(starts[:-1], starts[1:], strict=True))
