"""Pipeline schedules: when each device works on which micro-batch.

A schedule is a pure function of the number of devices p, of micro-batches m and of
chunks v (stages a device). It says in which order a device computes; `add_transfers`
puts the messages in. It knows no framework and no sizes, so that one schedule is
proved, run, timed and drawn. Chapter: *model_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

from ...checks import MAX_RANKS, check_count
from ...errors import InvalidInput
from .durations import Durations
from .instructions import Backward, Forward, Instruction, Lists
from .messages import add_transfers
from .zero_bubble import zb_h1, zb_h2, zb_v

Order = list[list[Instruction]]  # what every device computes, in order
Schedule = Callable[..., Lists]  # of (devices, micro_batches, chunks)
MOST_WORK = 10**6  # a schedule is lists in memory: seconds and a gigabyte of them


def _schedule(order: Callable[..., Order], chunks: int = 1) -> Schedule:
    """Make an order of computations a schedule: check, add messages and steps.

    `chunks`: how many stages a device has, if any number is not as good.
    """
    usual, free = chunks, order is _interleaved

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
        if devices * micro_batches * chunks > MOST_WORK:
            raise InvalidInput(
                f"expected at most {MOST_WORK:,} forward passes in a schedule, got "
                f"{devices} devices x {micro_batches} micro-batches x {chunks} chunks"
            )
        if free:
            return add_transfers(order(devices, micro_batches, chunks), durations)
        if chunks != usual:
            raise InvalidInput(
                f"expected {usual} stage{'s' * (usual > 1)} a device for this "
                f"schedule, got {chunks}; cut {devices * usual} stages for {devices} "
                "devices, or use the schedule interleaved"
            )
        return add_transfers(order(devices, micro_batches), durations)

    del complete.__wrapped__  # so that help() shows the names that it takes
    return complete


def _sequential(p: int, m: int) -> Order:
    """Naive: a micro-batch goes all the way forward and back before the next."""
    return [
        [kind(d, k) for k in range(m) for kind in (Forward, Backward)] for d in range(p)
    ]


def _gpipe(p: int, m: int) -> Order:
    """All micro-batches forward, then all of them back (Huang et al., 2019).

    Every stage holds m activations when the way back begins.
    """
    return [
        [Forward(d, k) for k in range(m)] + [Backward(d, k) for k in reversed(range(m))]
        for d in range(p)
    ]


def _one_f_one_b(p: int, m: int) -> Order:
    """One forward, one backward, as soon as the pipeline is full (Fan et al., 2021).

    The order is PipeDream's, with a flush at the end of the batch. Device d first runs
    p-d-1 forwards ahead; so it holds at most min(m, p-d) activations, however many
    micro-batches there are.
    """
    lists: Order = []
    for d in range(p):
        ahead = min(m, p - d - 1)
        forwards = [Forward(d, k) for k in range(m)]
        backwards = [Backward(d, k) for k in range(m)]
        lists.append(_alternate(forwards, backwards, ahead))
    return lists


def _alternate(
    forwards: Sequence[Instruction], backwards: Sequence[Instruction], ahead: int
) -> list[Instruction]:
    """`ahead` forwards, then forward and backward in turn, then the other backwards."""
    turns = zip(forwards[ahead:], backwards, strict=False)
    steady = [instruction for turn in turns for instruction in turn]
    return [*forwards[:ahead], *steady, *backwards[len(forwards) - ahead :]]


def _interleaved(p: int, m: int, v: int) -> Order:
    """v stages a device, far apart: the batch passes every device v times.

    Work goes in groups of p micro-batches: p of them through the device's first chunk,
    the same p through its second, and so on (Narayanan et al., 2021). A group that is
    not full is planned as if it were, and the micro-batches that are not there are left
    out: no order among the others depends on them. Such a group costs idle time twice:
    in the order itself, and because sends and receives that wait for each other then
    miss each other (up to 9 slots for p <= 8, m <= 16 and v <= 4; none if p divides m).
    """
    lists: Order = []
    full = -(-m // p) * p
    work = [(g, c, k) for g in range(0, full, p) for c in range(v) for k in range(p)]
    for d in range(p):
        forwards = [Forward(c * p + d, g + k) for g, c, k in work]
        backwards = [Backward((v - 1 - c) * p + d, g + k) for g, c, k in work]
        ahead = min(len(work), 2 * (p - d - 1) + (v - 1) * p)
        order = _alternate(forwards, backwards, ahead)
        lists.append([i for i in order if i.micro < m])
    return lists


sequential = _schedule(_sequential)
gpipe = _schedule(_gpipe)
one_f_one_b = _schedule(_one_f_one_b)
interleaved = _schedule(_interleaved)

#: Name -> schedule; what `train_stages(schedule=...)` knows.
SCHEDULES: dict[str, Schedule] = {
    "sequential": sequential,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zero_bubble": _schedule(zb_h1),
    "zb_h2": _schedule(zb_h2),
    "zb_v": _schedule(zb_v, chunks=2),
}
CHUNKS = {name: 2 if name == "zb_v" else 1 for name in SCHEDULES}  # if not given
