"""The virtual clock: equal to the closed formulas where they hold, and what it adds."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.observe.ledger import Ledger
from d2lmulti.observe.link import Link
from d2lmulti.observe.pipeline_trace import play_schedule
from d2lmulti.observe.timeline import Timeline
from d2lmulti.plans import collectives
from d2lmulti.plans.allreduce import ALLREDUCE, START_UP_BYTES, choose_allreduce
from d2lmulti.plans.pipeline import Durations
from d2lmulti.plans.schedules import SCHEDULES
from d2lmulti_cluster.clock import play
from d2lmulti_cluster.cost import FORMULAS, formula_seconds, plan_seconds, spans
from d2lmulti_cluster.hardware import uniform
from d2lmulti_cluster.presets import CLUSTERS, get_cluster

UNIFORM = uniform(5e-6, 13e9)
PLANS = {
    **{name: ALLREDUCE[name] for name in ALLREDUCE if name != "hierarchical"},
    "reduce_scatter": collectives.reduce_scatter,
    "allgather": collectives.allgather,
    "broadcast": collectives.broadcast,
    "reduce": collectives.reduce,
}


@pytest.mark.parametrize("name", PLANS)
def test_clock_equals_formula_on_a_uniform_cluster(name):
    for n in (1, 2, 3, 4, 7, 8, 12, 31, 64, 100, 256, 1000, 1024):
        # Every part is equally long: of n, and of the power of two below it.
        length = n * (1 << n.bit_length() - 1)
        played = play(PLANS[name](n, length), UNIFORM, itemsize=4)
        formula = FORMULAS[name](n, 4 * length, UNIFORM.inside)
        assert played.seconds == pytest.approx(formula, rel=1e-9, abs=0), n
        seconds = plan_seconds(PLANS[name](n, length), 4, 5e-6, 13e9)
        assert seconds == pytest.approx(formula, rel=1e-9, abs=0), n


@pytest.mark.parametrize("ranks", (8, 64, 1024))
def test_two_levels_equal_their_formula(ranks):
    cluster = get_cluster("dgx-h100")
    length = ranks * 1000
    played = play(ALLREDUCE["hierarchical"](ranks, length), cluster)
    formula = formula_seconds("hierarchical", ranks, 4 * length, cluster)
    assert played.seconds == pytest.approx(formula, rel=1e-9)


def test_a_ring_goes_at_the_pace_of_its_slowest_hop():
    cluster = get_cluster("dgx-h100")
    played = play(ALLREDUCE["ring"](64, 64_000), cluster)
    slowest = 2 * 63 * cluster.between.seconds(4000)
    # The slow hops wait for the fast ones once, at the start.
    assert slowest <= played.seconds <= slowest * 1.001
    assert formula_seconds("ring", 64, 256_000, cluster) == pytest.approx(slowest)


def test_nobody_waits_for_a_round_in_which_he_has_no_message():
    cluster = uniform(1.0, 1.0)
    rounds = [*collectives.reduce(4, 1), *collectives.broadcast(2, 1)]
    finish = play(rounds, cluster, itemsize=1).finish  # 1 to 0, 3 to 2; 2 to 0; 0 to 1
    assert finish.tolist() == [6.0, 6.0, 4.0, 2.0]


@pytest.mark.parametrize("algorithm", ALLREDUCE)
def test_more_bytes_or_slower_links_never_take_less(algorithm):
    def seconds(length, cluster):
        return play(ALLREDUCE[algorithm](24, length), cluster).seconds

    for cluster in CLUSTERS.values():
        times = [seconds(24 * 16 * 2**k, cluster) for k in range(5)]
        assert times == sorted(times) and times[0] > 0, cluster
        for where in ("inside", "between"):
            link = getattr(cluster, where)
            half = dataclasses.replace(link, bandwidth=link.bandwidth / 2)
            slower = seconds(24 * 16, dataclasses.replace(cluster, **{where: half}))
            assert slower >= times[0], cluster


def test_a_shared_network_card_divides_its_bandwidth():
    alone = get_cluster("dgx-h100")
    shared = dataclasses.replace(alone, nics=1)
    length = 16 * 10**7
    slow = play(ALLREDUCE["hierarchical"](16, length), shared).seconds
    fast = play(ALLREDUCE["hierarchical"](16, length), alone).seconds
    across = 2 * (length * 4 / 8 / 2) / alone.between.bandwidth  # of one of the rings
    assert slow - fast == pytest.approx(7 * across, rel=1e-6)


def test_an_oversubscribed_switch_slows_what_crosses_it():
    cluster = dataclasses.replace(get_cluster("dgx-h100"), per_leaf=2)
    narrow = dataclasses.replace(cluster, oversubscription=8.0)
    # A leaf of two nodes sends eight messages on, and gets an eighth of sixteen cards.
    plan = list(ALLREDUCE["hierarchical"](64, 64 * 10**7))
    part = 64 * 10**7 * 4 / 64
    across = 14 * part / cluster.between.bandwidth
    more = play(plan, narrow).seconds - play(plan, cluster).seconds
    assert more == pytest.approx(3 * across, rel=1e-6)
    inside = list(ALLREDUCE["ring"](8, 8000))
    assert play(inside, narrow).seconds == play(inside, cluster).seconds


def test_the_timeline_holds_every_message_and_ends_with_the_clock():
    timeline, cluster = Timeline(), get_cluster("dgx-1")
    plan = list(ALLREDUCE["hierarchical"](24, 1001, 8))
    played = play(plan, cluster, itemsize=2, timeline=timeline)
    assert len(timeline.spans) == played.messages
    assert timeline.end == played.seconds
    assert np.array_equal(played.finish, play(plan, cluster, itemsize=2).finish)
    counted = Ledger().count_plan(plan, itemsize=2)
    assert (played.messages, played.bytes) == (counted.messages, counted.bytes)


def test_a_big_ring_needs_little_memory():
    tracemalloc.start()
    for _ in range(2):
        played = play(_some_rounds(16384, 50), get_cluster("dgx-h100"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert played.messages == 50 * 16384
    assert peak < 20e6


def _some_rounds(ranks, count):
    for i, this_round in enumerate(ALLREDUCE["ring"](ranks, ranks * 100)):
        if i == count:
            return
        yield this_round


def test_a_message_of_a_schedule_takes_what_the_link_takes():
    lists = SCHEDULES["gpipe"](2, 1)
    free = play_schedule(lists, Durations(forward=1, backward=2)).makespan
    message = Link(0.25, 4.0).seconds(1.0)
    slow = play_schedule(lists, Durations(transfer=message))
    assert slow.makespan == free + 2 * 0.5  # an activation there and a gradient back
    spans = [span for span in slow.timeline().spans if "message" in span.name]
    assert [span.end - span.begin for span in spans] == [0.5, 0.5]


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10))))
def test_buckets_follow_each_other_and_never_come_too_early(buckets):
    ready, costs = [r for r, _ in buckets], [c for _, c in buckets]
    free = 0.0
    for i, (begin, end) in enumerate(spans(ready, costs)):
        assert begin == max(ready[i], free) and end == begin + costs[i]
        free = end


def test_auto_is_all_but_the_quickest_for_any_ranks_and_size():
    """Within 2 % of it, by the model that it states."""
    start_up = 5e-6
    rate = START_UP_BYTES / start_up
    chosen = set()
    for ranks in range(2, 40):
        for nbytes in (4**k for k in range(16)):
            seconds = {
                name: plan_seconds(plan(ranks, nbytes), 1, start_up, rate)
                for name, plan in ALLREDUCE.items()
                if name != "hierarchical"  # for networks with two kinds of links
            }
            name = choose_allreduce(ranks, nbytes)
            chosen.add(name)
            assert seconds[name] <= 1.02 * min(seconds.values())
    assert chosen == {"ring", "recursive_doubling", "halving_doubling"}
