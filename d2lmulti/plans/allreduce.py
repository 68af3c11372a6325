"""All-reduce algorithms as plans: afterwards every rank holds the sum of all ranks.

Each algorithm is a pure function of the number of ranks and the length of the vector
that every rank holds; it yields rounds (see `rounds.py`). Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .rounds import Round, make_round


def star(ranks: int, length: int) -> Iterator[Round]:
    """Everyone sends the whole vector to rank 0, which adds and sends back (D2L).

    Two rounds; rank 0 receives and sends (ranks - 1) vectors: it is the bottleneck.
    """
    if ranks == 1 or length == 0:
        return
    others = np.arange(1, ranks)
    yield make_round(others, 0, 0, length, add=True)
    yield make_round(0, others, 0, length, add=False)


ALLREDUCE: dict[str, Callable[[int, int], Iterator[Round]]] = {"star": star}
