"""Cutting a length into parts as evenly as possible, with nothing dropped."""

from __future__ import annotations

import numpy as np

from ..checks import MOST_RANKS, check_count


def even_bounds(total: int, parts: int) -> list[tuple[int, int]]:
    """Cut range(total) into `parts` neighbouring (first, last) pairs.

    The first `total % parts` parts are one element longer; parts may be empty.

    >>> even_bounds(10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    total = check_count("total", total, least=0)
    parts = check_count("parts", parts, most=MOST_RANKS)
    edges = even_edges(total, parts).tolist()
    return list(zip(edges[:-1], edges[1:], strict=True))


def even_edges(total: int, parts: int) -> np.ndarray:
    """Give the same cut as an array: part i is edges[i] to edges[i + 1].

    >>> even_edges(10, 4).tolist()
    [0, 3, 6, 8, 10]
    """
    size, longer = divmod(int(total), parts)
    i = np.arange(parts + 1, dtype=np.int64)
    return i * size + np.minimum(i, longer)
