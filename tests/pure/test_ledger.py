"""The ledger's counts are those of counting by hand, and the textbook's, exactly."""

from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.observe import ledger as ledgers
from d2lmulti.observe.ledger import Ledger
from d2lmulti.plans.allreduce import (
    ALLREDUCE,
    halving_doubling,
    hierarchical,
    recursive_doubling,
    ring,
    star,
    tree,
)
from d2lmulti.plans.collectives import (
    allgather,
    alltoall,
    broadcast,
    reduce,
    reduce_scatter,
)
from d2lmulti.plans.rounds import even_bounds, make_round

RANKS = range(1, 65)
LENGTHS = [0, 1, 2, 13, 64, 1009]  # with fewer elements than ranks, primes


def by_hand(rounds, itemsize):
    counts = {name: Counter() for name in ("sent", "received", "out", "links")}
    for t in (t for this_round in rounds for t in this_round):
        size = t.length * itemsize
        counts["sent"][t.source] += size
        counts["received"][t.target] += size
        counts["out"][t.source] += 1
        counts["links"][t.source, t.target] += size
    return counts


@given(
    name=st.sampled_from(list(ALLREDUCE)),
    ranks=st.integers(1, 20),
    length=st.integers(0, 100),
    itemsize=st.sampled_from([1, 4, 8]),
    some=st.sampled_from([1, 7, 1 << 16]),
)
def test_counts_are_those_of_counting_by_hand(name, ranks, length, itemsize, some):
    rounds = list(ALLREDUCE[name](ranks, length))
    before, ledgers._MAX_ROWS = ledgers._MAX_ROWS, some  # add up often, and seldom
    try:
        l = Ledger().count_plan(rounds, itemsize).count_plan(rounds, itemsize)
    finally:
        ledgers._MAX_ROWS = before
    counts = by_hand(rounds + rounds, itemsize)
    assert l.sent == counts["sent"] and l.received == counts["received"]
    assert l.messages_sent == counts["out"]
    assert l.links == counts["links"]
    assert l.messages == sum(map(len, rounds)) * 2
    assert l.bytes == sum(l.links.values()) and l.rounds == 2 * len(rounds)


def test_counts_stay_exact_where_floats_would_round():
    odd = 2**53 + 1
    l = Ledger().count_plan([make_round(0, 1, 0, odd, add=True)] * 3, 1)
    assert l.bytes == l.sent[0] == l.received[1] == l.links[0, 1] == 3 * odd


# -- the textbook's formulas, in elements, for every rank ------------------------------


def parts(length, n):
    return [last - first for first, last in even_bounds(length, n)]


def counted(rounds):
    return Ledger().count_plan(rounds, 1)


def nonzero(values):
    return {rank: value for rank, value in enumerate(values) if value}


def filled(sizes):
    return sum(size > 0 for size in sizes)  # an empty part is no message


@pytest.mark.parametrize("length", LENGTHS)
def test_ring_sends_two_nths_of_n_minus_one_from_every_rank(length):
    for n in RANKS:
        part = parts(length, n)
        l = counted(ring(n, length))
        # All parts but its own, then all but its right neighbor's.
        sent = [2 * length - part[r] - part[(r + 1) % n] for r in range(n)]
        sent = sent if n > 1 else [0]
        assert l.sent == nonzero(sent)
        assert l.rounds == (2 * (n - 1) if length else 0)
        assert l.messages == 2 * (n - 1) * filled(part)
        assert l.bytes == 2 * (n - 1) * length
        if length % n == 0:
            assert all(l.sent[r] * n == 2 * (n - 1) * length for r in range(n))
            assert l.sent == l.received
        assert set(l.links) <= {(r, (r + 1) % n) for r in range(n)}
        half = counted(reduce_scatter(n, length))
        other = counted(allgather(n, length))
        assert half.sent == nonzero([length - p for p in part] if n > 1 else [])
        assert half.bytes == other.bytes == (n - 1) * length


@pytest.mark.parametrize("length", LENGTHS)
def test_star_and_tree_send_whole_vectors(length):
    for n in RANKS:
        l = counted(star(n, length))
        others = n - 1 if length else 0
        assert l.sent == nonzero([others * length] + [length] * (n - 1))
        assert l.received == l.sent
        assert l.messages == 2 * others and l.rounds == 2 * (others > 0)
        l = counted(tree(n, length))
        assert l.rounds == (2 * (n - 1).bit_length() if length else 0)
        assert l.messages == 2 * others and l.bytes == 2 * others * length
        for r in range(n):  # up once unless it is the root, down to every child
            zeros = (r & -r).bit_length() - 1 if r else (n - 1).bit_length()
            children = sum(r + (1 << k) < n for k in range(zeros))
            assert l.sent[r] == ((r > 0) + children) * length
            assert l.messages_sent[r] == ((r > 0) + children) * (length > 0)


def places(n):
    """Return the ranks that swap, in order: of the first pairs only the left ones."""
    extra = n - (1 << n.bit_length() - 1)
    return [r for r in range(n) if r % 2 == 0 or r >= 2 * extra], extra


@pytest.mark.parametrize("length", LENGTHS)
def test_recursive_doubling_swaps_whole_vectors_and_folds(length):
    for n in RANKS:
        ranks, extra = places(n)
        doublings = len(ranks).bit_length() - 1
        l = counted(recursive_doubling(n, length))
        assert l.rounds == (doublings + 2 * (extra > 0)) * (length > 0)
        assert l.bytes == (len(ranks) * doublings + 2 * extra) * length
        for r in range(n):
            swaps = doublings if r in ranks else 0
            assert l.sent[r] == l.received[r] == (swaps + (r < 2 * extra)) * length


@pytest.mark.parametrize("length", LENGTHS)
def test_halving_doubling_has_the_bytes_of_the_ring_and_a_fold(length):
    for n in RANKS:
        ranks, extra = places(n)
        p, bits = len(ranks), len(ranks).bit_length() - 1
        l = counted(halving_doubling(n, length))
        part = parts(length, p)
        if length >= p:
            assert l.rounds == 2 * bits + 2 * (extra > 0)
            assert l.messages == 2 * p * bits + 2 * extra
        assert l.bytes == 2 * (p - 1) * length + 2 * extra * length
        for place, r in enumerate(ranks):
            own = int(f"{place:0{bits}b}"[::-1], 2) if bits else 0  # near bits first
            doubling = 0
            for size in (1 << k for k in range(bits)):
                doubling += sum(part[own // size * size :][:size])
            fold = length * (r < 2 * extra)
            assert l.sent[r] == length - part[own] + doubling + fold
        if length % p == 0 and not extra:
            assert all(l.sent[r] * n == 2 * (n - 1) * length for r in range(n))


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 4), (4, 4), (8, 4), (2, 8)])
def test_halving_doubling_crosses_nodes_with_as_little_as_two_levels(nodes, per_node):
    n, length = nodes * per_node, 3 * nodes * per_node
    crossing = [
        sum(
            size
            for (source, target), size in counted(plan).links.items()
            if source < per_node <= target
        )
        for plan in (halving_doubling(n, length), hierarchical(n, length, per_node))
    ]
    assert crossing[0] == crossing[1] == 2 * (nodes - 1) * length // nodes


@pytest.mark.parametrize("per_node", [1, 2, 4, 5, 8])
def test_hierarchical_sends_the_ring_of_nodes_between_nodes(per_node):
    for n in (*range(1, 34), 47, 48, 63, 64):
        m = -(-n // per_node)  # nodes; the last holds what is left
        sizes = [min(per_node, n - node * per_node) for node in range(m)]
        for length in LENGTHS:
            l = counted(hierarchical(n, length, per_node))
            between, within = Counter(), Counter()
            for (a, b), size in l.links.items():
                here = a // per_node == b // per_node
                (within if here else between)[a // per_node] += size
            # Every part, cut into a piece a node, goes round the ring of nodes: a node
            # sends all but two of its pieces' worth.
            out = Counter()
            for part in parts(length, sizes[0]):
                piece = parts(part, m)
                for node in range(m):
                    if m > 1:
                        out[node] += 2 * part - piece[node] - piece[(node + 1) % m]
            assert between == +out
            for node, size in enumerate(sizes):  # reduce-scatter and all-gather
                assert within[node] == 2 * (size - 1) * length
            if length and length >= n * per_node:
                assert l.rounds == 2 * (sizes[0] - 1) + 2 * (m - 1)
            assert l.bytes == 2 * (m - 1) * length + sum(
                2 * (size - 1) * length for size in sizes
            )


@pytest.mark.parametrize("length", LENGTHS)
def test_the_other_collectives_move_what_they_must(length):
    for n in RANKS:
        for plan in (reduce, broadcast):
            l = counted(plan(n, length))
            assert l.bytes == (n - 1) * length
            assert l.rounds == ((n - 1).bit_length() if length else 0)
        l = counted(alltoall(n, length))
        assert l.sent == l.received == nonzero([(n - 1) * length] * n)
        assert l.messages == n * (n - 1) * (length > 0)
        swaps = 2 if n % 2 else 1  # of a rank in a round
        assert l.rounds == (n - 1) // swaps * (length > 0)


def test_a_ledger_of_a_ring_takes_little_memory():
    import tracemalloc

    tracemalloc.start()
    try:
        Ledger().count_plan(partial(ring, 2048)(2048 * 3), itemsize=4)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20  # what it keeps does not grow with the 8.4 million transfers
