"""Pipeline schedules: in which order each device works on its micro-batches.

An order is a pure function of the numbers of devices p, micro-batches m and chunks v
(stages per device); `add_transfers` inserts the messages. Chapter: *pipeline_parallel*.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import chain

from ..checks import MAX_RANKS, check_count
from ..errors import InvalidInput
from .pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Durations,
    Forward,
    Instruction,
    Lists,
    Name,
    Order,
    add_transfers,
    made,
    needs,
)

Schedule = Callable[..., Lists]  # of (devices, micro_batches, chunks)


def sequential(p: int, m: int) -> Order:
    """Run each micro-batch forward and backward before the next: the naive order."""
    return [
        [kind(d, k) for k in range(m) for kind in (Forward, Backward)] for d in range(p)
    ]


def gpipe(p: int, m: int) -> Order:
    """Run all micro-batches forward, then all backward (Huang et al., 2019).

    Every stage stores m activations when the backward pass begins.
    """
    return [
        [Forward(d, k) for k in range(m)] + [Backward(d, k) for k in reversed(range(m))]
        for d in range(p)
    ]


def one_f_one_b(p: int, m: int) -> Order:
    """Alternate forward and backward once the pipeline is full (Fan et al., 2021).

    PipeDream's order with a flush at the end of the batch. Device d first runs p-d-1
    forward passes ahead, so it stores at most min(m, p-d) activations for any m.
    """
    lists = []
    for d in range(p):
        forwards = [Forward(d, k) for k in range(m)]
        backwards = [Backward(d, k) for k in range(m)]
        lists.append(_alternate(forwards, backwards, ahead=min(m, p - d - 1)))
    return lists


def interleaved(p: int, m: int, v: int) -> Order:
    """Interleave v stages (chunks) per device, in groups of p micro-batches.

    A group that is not full is planned as if it were, and the missing micro-batches are
    left out. Such a group costs idle time twice: in the order itself, and because
    matching sends and receives are then reached at different times (up to 9 slots for
    p <= 8, m <= 16 and v <= 4; none if p divides m). Source: Narayanan et al. (2021).
    """
    full = -(-m // p) * p
    work = [(g, c, k) for g in range(0, full, p) for c in range(v) for k in range(p)]
    lists = []
    for d in range(p):
        forwards = [Forward(c * p + d, g + k) for g, c, k in work]
        backwards = [Backward((v - 1 - c) * p + d, g + k) for g, c, k in work]
        ahead = min(len(work), 2 * (p - d - 1) + (v - 1) * p)
        order = _alternate(forwards, backwards, ahead)
        lists.append([i for i in order if i.micro < m])
    return lists


def _alternate(
    forwards: Sequence[Instruction], backwards: Sequence[Instruction], ahead: int
) -> list[Instruction]:
    """Order `ahead` forwards, then both in turn, then the remaining backwards."""
    steady = chain.from_iterable(zip(forwards[ahead:], backwards, strict=False))
    return [*forwards[:ahead], *steady, *backwards[len(forwards) - ahead :]]


def zb_h1(p: int, m: int) -> Order:
    """Shrink the bubble to a third of 1F1B's, with its memory (ZB-H1).

    The backward pass comes in two halves. The previous stage waits for the input's
    gradient only; the weights' gradients fill slots that would be idle. Each device
    stores at most min(m, p) activations. Source: Qi et al. (2023).
    """
    return [_delay_weights(d, m, ahead=p - d, behind=d) for d in range(p)]


def zb_h2(p: int, m: int) -> Order:
    """Remove the bubble if m >= 2p - 1, with about twice the memory (ZB-H2).

    Each device stores at most min(m, 2p - 1) activations. With fewer micro-batches
    device d runs fewer forwards ahead, down to ZB-H1's order for m <= p: a longer
    warm-up would not shorten the longest device. Source: Qi et al. (2023).
    """
    more = max(0, m - p)  # forwards ahead, compared with ZB-H1
    return [
        _delay_weights(d, m, p - d + min(more, p - d - 1), d + min(more, d))
        for d in range(p)
    ]


def _delay_weights(d: int, m: int, ahead: int, behind: int) -> list[Instruction]:
    """Order `ahead` forwards first, weights' gradients `behind` micro-batches late."""
    forwards = [Forward(d, k) for k in range(m)]
    order: list[Instruction] = [*forwards[:ahead]]
    for k in range(m):
        order.append(BackwardInput(d, k))
        if k >= behind:
            order.append(BackwardWeight(d, k - behind))
        order += forwards[k + ahead : k + ahead + 1]
    return order + [BackwardWeight(d, k) for k in range(max(0, m - behind), m)]


def zb_v(p: int, m: int) -> Order:
    """Remove the bubble with 1F1B's memory: two stages per device, as a V (ZB-V).

    Device d has the stages d and 2p-1-d. If m >= 2p - 1, no device is idle from its
    first to its last computation, and each stores 2p activations of its stages, which
    are half as large. Source: Qi et al. (2023).
    """
    full = max(m, 2 * p - 1)  # fewer are planned as that many; the surplus is left out
    lists = []
    for d in range(p):
        F1, I1, W1 = [(kind, d) for kind in (Forward, BackwardInput, BackwardWeight)]
        F2, I2, W2 = [(kind, 2 * p - 1 - d) for kind, _ in (F1, I1, W1)]
        order = [
            *[F1] * (2 * (p - d) - 1),  # until the first micro-batch returns from p-1
            *[F2, F1] * d,  # until its gradient does; then 2p activations are stored,
            *[F2, I2, W2] * (p - d),  # and each new one replaces an old one
            *[F1, I1, W1, F2, I2, W2] * (full - p),
            *[I1, I2] * d,  # the gradients that previous devices wait for come first
            *[I1, W1] * (p - d),
            *[W2] * d,
            *[W1] * d,
        ]
        lists.append([i for i in _numbered(order) if i.micro < m])
    return lists if m == full else _weights_in_gaps(lists, [*range(p), *range(p)[::-1]])


def _numbered(order: Iterable[tuple[type[Instruction], int]]) -> list[Instruction]:
    """Number the micro-batches of each kind of work at each stage: 0, 1, 2, ..."""
    count: Counter[tuple[type[Instruction], int]] = Counter()
    numbered = []
    for kind, stage in order:
        numbered.append(kind(stage, count[kind, stage]))
        count[kind, stage] += 1
    return numbered


def _weights_in_gaps(lists: Order, ranks: Sequence[int]) -> Order:
    """Move each weights' gradient to a slot in which its device would be idle.

    Simulate the lists slot by slot. A device computes a weights' gradient if the input
    of its next computation is missing, or if another forward would exceed 2p
    activations.
    """
    p = len(lists)
    left = [deque(i for i in one if type(i) is not BackwardWeight) for one in lists]
    weights: list[deque[Instruction]] = [deque() for _ in lists]
    order: Order = [[] for _ in lists]
    stored = [0] * p
    done: set[Name] = set()
    while any(left) or any(weights):
        slot = []
        for d in range(p):
            i = left[d][0] if left[d] else None
            full = type(i) is Forward and stored[d] == 2 * p
            if i and not full and needs(i, ranks) <= done:
                slot.append((d, left[d].popleft()))
            elif weights[d]:
                slot.append((d, weights[d].popleft()))
        for d, i in slot:  # all devices compute at the same time
            order[d].append(i)
            done.add(made(i))
            stored[d] += {Forward: 1, BackwardWeight: -1}.get(type(i), 0)
            if type(i) is BackwardInput:
                weights[d].append(BackwardWeight(i.stage, i.micro))
    return order


MAX_WORK = 10**6  # instructions: about a gigabyte of memory


def _schedule(order: Callable[..., Order], chunks: int = 1) -> Schedule:
    """Turn an order of computations into a schedule: check, add messages and steps.

    `chunks` is the number of stages per device, unless the order leaves that open.
    """
    usual, any_chunks = chunks, order is interleaved

    @wraps(order)
    def complete(
        devices: int,
        micro_batches: int,
        chunks: int = usual,
        durations: Durations | None = None,
    ) -> Lists:
        devices = check_count("devices", devices, max=MAX_RANKS)
        micro_batches = check_count("micro_batches", micro_batches)
        chunks = check_count("chunks", chunks)
        if devices * micro_batches * chunks > MAX_WORK:
            raise InvalidInput(
                f"expected at most {MAX_WORK:,} forward passes in a schedule, got "
                f"{devices} devices x {micro_batches} micro-batches x {chunks} chunks"
            )
        if any_chunks:
            return add_transfers(order(devices, micro_batches, chunks), durations)
        if chunks != usual:
            raise InvalidInput(
                f"expected {usual} stage{'s' * (usual > 1)} per device for this "
                f"schedule, got {chunks}; cut {devices * usual} stages for {devices} "
                "devices, or use the schedule interleaved"
            )
        return add_transfers(order(devices, micro_batches), durations)

    del complete.__wrapped__  # help() shows these names
    return complete


#: Name -> schedule; what `train_stages(schedule=...)` knows.
SCHEDULES: dict[str, Schedule] = {
    "sequential": _schedule(sequential),
    "gpipe": _schedule(gpipe),
    "1f1b": _schedule(one_f_one_b),
    "interleaved": _schedule(interleaved),
    "zero_bubble": _schedule(zb_h1),
    "zb_h2": _schedule(zb_h2),
    "zb_v": _schedule(zb_v, chunks=2),
}
CHUNKS = {name: 2 if name == "zb_v" else 1 for name in SCHEDULES}  # if not given
