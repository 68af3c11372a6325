"""Schedules on a clock: idle time, memory, and what the messages cost.

Every computation takes one slot, a way back that is not in halves two.
"""

import itertools
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.observe.pipeline_trace import play_schedule
from d2lmulti.plans.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Durations,
    Forward,
    ReceiveActivation,
    ReceiveGradient,
    StageTransfer,
    Step,
    simulate,
    verify_schedule,
)
from d2lmulti.plans.schedules import SCHEDULES


class Slots:
    """Play a schedule on a clock of its own: what is idle, and what is held.

    With `messages`, a message happens when both of its devices have come to it.
    """

    def __init__(self, lists, messages):
        p = len(lists)
        now, live, end, busy, first = [0] * p, [0] * p, {}, 0, {}
        self.peak = [0] * p
        self.spans = [0] * p  # from the first computation to the end of the last
        for d, i in simulate(lists):
            if isinstance(i, (ReceiveActivation, ReceiveGradient)) and messages:
                now[d] = now[i.device] = max(now[d], now[i.device])
            if isinstance(i, (StageTransfer, Step)):
                continue
            before = {
                Forward: [("F", i.stage - 1, i.micro)],
                Backward: [("B", i.stage + 1, i.micro)],
                BackwardInput: [("B", i.stage + 1, i.micro)],
                BackwardWeight: [],
            }[type(i)]
            length = 2 if isinstance(i, Backward) else 1
            begin = max([now[d], *(end.get(name, 0) for name in before)])
            now[d] = begin + length
            self.spans[d] = now[d] - first.setdefault(d, begin)
            kind = {Forward: "F", BackwardWeight: "W"}.get(type(i), "B")
            end[kind, i.stage, i.micro] = now[d]
            busy += length
            live[d] += isinstance(i, Forward)
            self.peak[d] = max(self.peak[d], live[d])
            live[d] -= isinstance(i, (Backward, BackwardWeight))
        self.end = max(end.values())
        self.idle = 1 - Fraction(busy, p * self.end)


@cache
def played(name, p, m, v=1, messages=True):
    return Slots(SCHEDULES[name](p, m, v), messages)


def slots(name, p, m, v=1):
    """Give idle share and peak of live activations, messages counted."""
    found = played(name, p, m, v)
    assert found.end == played(name, p, m, v, messages=False).end  # they cost nothing
    return found.idle, found.peak


@pytest.mark.parametrize("p", range(1, 9))
def test_idle_share_and_live_activations_of_the_schedules(p):
    for m in range(1, 17):
        bubble = Fraction(p - 1, m + p - 1)
        assert slots("sequential", p, m) == (Fraction(p - 1, p), [1] * p)
        assert slots("gpipe", p, m) == (bubble, [m] * p)
        live = [min(m, p - s) for s in range(p)]
        assert slots("1f1b", p, m) == (bubble, live)
        idle, live = slots("zero_bubble", p, m)
        assert live == [min(m, p)] * p
        if m >= p:
            assert idle == Fraction(p - 1, 3 * m + p - 1)
        elif p > 1:
            assert idle < bubble
        for v in (1, 2, 3):
            if m % p == 0:
                idle, live = slots("interleaved", p, m, v)
                assert idle == Fraction(p - 1, v * m + p - 1)
                ahead = [2 * (p - s - 1) + (v - 1) * p for s in range(p)]
                assert live == [min(v * m, a + 1) for a in ahead]


@pytest.mark.parametrize("p", range(1, 9))
def test_from_2p_minus_1_micro_batches_on_there_is_no_bubble(p):
    """ZB-H2 and ZB-V: idle before the first computation and after the last only."""
    for m in range(1, 20):
        two, v = played("zb_h2", p, m), played("zb_v", p, m, 2)
        assert two.peak == [min(m, 2 * p - 1)] * p
        assert max(v.peak) == 2 * min(m, p)  # of stages half as long as the others'
        if m >= 2 * p - 1:
            assert two.spans == [3 * m] * p and two.end == 3 * m + p - 1
            assert v.spans == [6 * m] * p and v.end == 6 * m + p - 1
            assert v.peak == [2 * p] * p
        elif p > 1:
            one = played("zero_bubble", p, m)
            assert max(two.spans) <= max(one.spans) and max(v.spans) > 6 * m


@pytest.mark.parametrize("p", range(1, 9))
def test_no_zero_bubble_schedule_is_longer_than_a_simpler_one(p):
    """Every device works 3m slots; the first waits 2p-1, the last p-1 for its work."""
    for m in range(1, 17):
        flushed, one = played("1f1b", p, m), played("zero_bubble", p, m)
        two, v = played("zb_h2", p, m), played("zb_v", p, m, 2)
        assert two.end == one.end == max(3 * m + p - 1, 2 * m + 2 * p - 1)
        assert one.end <= flushed.end
        assert max(two.spans) == max(3 * m, 2 * m + 2 * p - 1)
        if m <= p:
            assert max(two.peak) == max(one.peak)
        least = max(6 * m + p - 1, 2 * m + 4 * p - 1)  # ZB-V's slots are half as long
        assert least <= v.end <= min(2 * one.end, least + 4)
        assert v.end == least or m < p


@pytest.mark.parametrize(("p", "one", "two", "v"), [(4, 51, 48, 96), (8, 55, 48, 96)])
def test_the_longest_device_of_the_zero_bubble_schedules(p, one, two, v):
    """As published for 16 micro-batches; a stage of ZB-V is half as long."""
    assert max(played("zero_bubble", p, 16).spans) == one
    assert max(played("zb_h2", p, 16).spans) == two
    assert max(played("zb_v", p, 16, 2).spans) == v


def test_what_sends_that_wait_cost_interleaved_stages_in_groups_that_are_not_full():
    """Nothing if p divides m; else up to 9 slots, and 80 for 78 with p=3, m=7, v=3."""
    lost, sizes = {}, itertools.product(range(1, 6), range(1, 9), range(1, 4))
    for p, m, v in (*sizes, (7, 8, 4)):
        ends = [played("interleaved", p, m, v, wait).end for wait in (True, False)]
        lost[p, m, v] = ends[0] - ends[1]
    assert not any(slots for (p, m, _), slots in lost.items() if m % p == 0)
    assert lost[3, 7, 3] == 2 and lost[7, 8, 4] == 9 == max(lost.values())
    # Nor does the formula, of 3vm + 3(p - 1) slots, hold for them: 39 and 63 are less.
    ends = [played("interleaved", 4, m, 2, messages=False).end for m in (5, 9)]
    assert ends == [45, 69]


def test_the_order_of_messages_knows_the_durations():
    """Equal halves and wholes: played with the true times, none is late."""
    equal = Durations(backward=1, backward_input=0.5, backward_weight=0.5)
    for name, chunks in (("interleaved", 2), ("zero_bubble", 1)):
        ends = []
        for lists in (
            SCHEDULES[name](4, 16, chunks, equal), SCHEDULES[name](4, 16, chunks)
        ):  # fmt: skip
            ends.append(play_schedule(lists, equal).makespan)
        assert ends[0] == (2 * 16 * chunks + 2 * 3 if chunks == 2 else 35) < ends[1]


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.data())
def test_messages_for_any_durations_are_right(p, m, v, data):
    name = data.draw(st.sampled_from(sorted(SCHEDULES)))
    v = {"interleaved": v, "zb_v": 2}.get(name, 1)
    durations = Durations(*(data.draw(st.floats(0, 4)) for _ in range(5)))
    verify_schedule(SCHEDULES[name](p, m, v, durations), p * v, m)
