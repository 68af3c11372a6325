"""Schedules alone: what they promise, and how a broken one is reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.errors import PlanError
from d2lmulti.plans import pipeline as instructions
from d2lmulti.plans.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    ReceiveActivation,
    SendActivation,
    StageTransfer,
    Step,
    add_transfers,
    stage_ranks,
    verify_schedule,
)
from d2lmulti.plans.schedules import SCHEDULES

NAMES = sorted(SCHEDULES)


def chunks_of(name):
    return {"interleaved": (1, 2, 3), "zb_v": (2,)}.get(name, (1,))


@pytest.mark.parametrize("devices", range(1, 9))
@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_is_right(name, devices):
    """Stages 1 to 8, micro-batches 1 to 16."""
    for micro_batches in range(1, 17):
        for chunks in chunks_of(name):
            lists = SCHEDULES[name](devices, micro_batches, chunks)
            assert len(lists) == devices
            verify_schedule(lists, devices * chunks, micro_batches)


def test_orders_as_published():
    def first_letters(mine):
        computed = [i for i in mine if type(i) in (Forward, Backward)]
        return " ".join(f"{type(i).__name__[0]}{i.micro}" for i in computed)

    one = SCHEDULES["1f1b"](4, 5)
    assert first_letters(one[0]) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert first_letters(one[3]) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"
    assert first_letters(SCHEDULES["gpipe"](2, 3)[1]) == "F0 F1 F2 B2 B1 B0"
    assert first_letters(SCHEDULES["sequential"](2, 2)[0]) == "F0 B0 F1 B1"
    lists = SCHEDULES["interleaved"](2, 4, 2)
    passes = [i.stage for i in lists[0] if type(i) is Forward]
    assert passes == [0, 0, 2, 2, 0, 0, 2, 2]  # two micro-batches through each chunk


def test_the_weights_gradients_wait_longer_on_later_devices():
    for d, mine in enumerate(SCHEDULES["zero_bubble"](4, 8)):
        order = [i for i in mine if isinstance(i, (BackwardInput, BackwardWeight))]
        first = order.index(BackwardWeight(d, 0))
        assert first == d + 1


# -- broken schedules ------------------------------------------------------------------


cases = st.tuples(st.sampled_from(NAMES), st.integers(2, 5), st.integers(1, 6))


def pick(data, case):
    name, devices, micro_batches = case
    chunks = chunks_of(name)[-1]
    lists = [list(mine) for mine in SCHEDULES[name](devices, micro_batches, chunks)]
    device = data.draw(st.integers(0, devices - 1))
    place = data.draw(st.integers(0, len(lists[device]) - 1))
    return lists, devices * chunks, micro_batches, device, place


@given(cases, st.data())
def test_a_lost_instruction_is_found(case, data):
    lists, stages, micro_batches, device, place = pick(data, case)
    lost = lists[device].pop(place)
    with pytest.raises(PlanError, match="device") as error:
        verify_schedule(lists, stages, micro_batches)
    if isinstance(lost, StageTransfer) or type(lost) in (Backward, BackwardWeight):
        assert str(lost) in str(error.value) and f"device {device}" in str(error.value)


@pytest.mark.parametrize("fault", ["doubled", "at the wrong end", "elsewhere"])
@given(cases, st.data())
def test_an_instruction_in_a_wrong_place_is_found(fault, case, data):
    lists, stages, micro_batches, device, place = pick(data, case)
    mine, named = lists[device], f"device {device}|deadlock"
    wrong = mine[place] if fault == "doubled" else mine.pop(place)
    if fault == "doubled":
        mine.insert(place, wrong)
    elif fault == "elsewhere":
        lists[(device + 1) % len(lists)].insert(0, wrong)
        named = "."
    elif isinstance(wrong, (Forward, ReceiveActivation)):
        mine.insert(len(mine) - 1, wrong)  # after all else, before the step
    else:
        mine.insert(0, wrong)
    with pytest.raises(PlanError, match=named):
        verify_schedule(lists, stages, micro_batches)


def eager(order):
    """Each of two devices receives just before it computes and sends right after."""
    lists = []
    for d, mine in enumerate(order):
        out = []
        for i in mine:
            sends = (d == 0) == isinstance(i, Forward)  # else it receives
            kind = "Activation" if isinstance(i, Forward) else "Gradient"
            transfer = getattr(instructions, ("Send" if sends else "Receive") + kind)
            message = transfer(i.stage, i.micro, 1 - d)
            out += [i, message] if sends else [message, i]
        lists.append([*out, Step()])
    return lists


def test_two_devices_that_send_at_each_other_are_found():
    """1F1B with a send after each computation: two devices send at each other."""
    lists = eager(
        [i for i in mine if type(i) in (Forward, Backward)]
        for mine in SCHEDULES["1f1b"](2, 4)
    )
    message = r"deadlock.*device 0 at SendActivation\(.*device 1 at SendGradient\("
    with pytest.raises(PlanError, match=message):
        verify_schedule(lists, 2, 4)


def test_messages_keep_their_order():
    lists = [list(mine) for mine in SCHEDULES["gpipe"](2, 2)]
    sends = [n for n, i in enumerate(lists[0]) if isinstance(i, SendActivation)]
    a, b = sends
    forward = next(n for n, i in enumerate(lists[0]) if i == Forward(0, 1))
    lists[0][a], lists[0][b] = lists[0][b], lists[0][a]
    lists[0].insert(0, lists[0].pop(forward))  # both are computed by then
    with pytest.raises(PlanError, match="device 1.*in the order in which"):
        verify_schedule(lists, 2, 2)


def test_a_missing_stage_and_a_stage_too_many_are_named():
    with pytest.raises(PlanError, match="no device computes stage 2"):
        verify_schedule(SCHEDULES["gpipe"](2, 2), 3, 2)
    with pytest.raises(PlanError, match="expected a stage from 0 to 0"):
        verify_schedule(SCHEDULES["gpipe"](2, 2), 1, 2)


def test_stages_lie_where_their_computations_are():
    for name in NAMES:
        v = chunks_of(name)[-1]
        ranks = stage_ranks(SCHEDULES[name](3, 2, v))
        turn = [0, 1, 2] * v if name != "zb_v" else [0, 1, 2, 2, 1, 0]
        assert ranks == turn


def test_a_stage_on_two_devices_is_named():
    order = [[Forward(0, 0), Backward(0, 0)], [Backward(0, 1)]]
    for refused in (add_transfers, stage_ranks):
        with pytest.raises(PlanError, match=r"device 1, Backward\(stage 0.*device 0"):
            refused(order)
