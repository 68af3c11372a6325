"""Which all-reduce is the quickest for so many ranks and so many bytes: `auto`.

The model is the simplest that explains the choice: a message takes a start-up time and
then its bytes over the bandwidth, and every pair of ranks has such a link. Networks
with fast and slow links need `hierarchical`, which no count of ranks can tell.
"""

from __future__ import annotations

# What a link could carry while one message starts up: 5 microseconds at 13 GB/s.
START_UP_BYTES = 64 * 1024


def choose_allreduce(ranks: int, nbytes: int) -> str:
    """Name the algorithm for vectors of `nbytes` bytes: ring or halving_doubling.

    A power of two: halving_doubling, with the ring's bytes in fewer rounds. Otherwise
    its fold sends about one more vector each way, and the ring has more rounds: the
    ring pays from START_UP_BYTES for each of its extra rounds on one way. By the model,
    no algorithm but `hierarchical` is quicker by more than 2 % (tests/pure).

    >>> [choose_allreduce(ranks, 10**6) for ranks in (4, 6, 8, 60)]
    ['halving_doubling', 'ring', 'halving_doubling', 'halving_doubling']
    """
    if ranks & (ranks - 1) == 0:
        return "halving_doubling"
    extra_rounds = (ranks - 1) - (ranks - 1).bit_length()  # reducing; gathering as many
    return "ring" if nbytes >= extra_rounds * START_UP_BYTES else "halving_doubling"
