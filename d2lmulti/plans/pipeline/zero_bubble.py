"""Orders with the backward pass in two halves, which leave less or no bubble.

The stage before waits for the input's gradient only; the weights' gradients can be put
off, and fill what would be idle. Each order is written down for equal times of the
three kinds of work. Source: Qi et al. (2023), "Zero Bubble Pipeline Parallelism".
Chapter: *model_parallel*.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from .instructions import BackwardInput, BackwardWeight, Forward, Instruction
from .messages import Name, made, needs

Order = list[list[Instruction]]
Work = tuple[type[Instruction], int]  # a kind of work and a stage
HALVES = (Forward, BackwardInput, BackwardWeight)


def zb_h1(p: int, m: int) -> Order:
    """Zero-bubble in the memory of 1F1B (ZB-H1): a bubble a third as long.

    Every device holds at most min(m, p) activations.
    """
    return [_put_off(d, m, ahead=p - d, behind=d) for d in range(p)]


def zb_h2(p: int, m: int) -> Order:
    """Zero-bubble with about twice the memory (ZB-H2): no bubble if m >= 2p - 1.

    Device d begins d slots after device 0, and from then on is never idle; so it ends
    d slots later too. Every device holds at most min(m, 2p - 1) activations. With fewer
    micro-batches device d runs fewer forwards ahead, down to ZB-H1's order if m <= p:
    a longer warm-up would not shorten the longest device, only delay the last ones.
    """
    more = max(0, m - p)  # forwards ahead, compared with ZB-H1
    return [
        _put_off(d, m, p - d + min(more, p - d - 1), d + min(more, d)) for d in range(p)
    ]


def _put_off(d: int, m: int, ahead: int, behind: int) -> list[Instruction]:
    """`ahead` forwards first; the weights' gradients `behind` micro-batches late."""
    forwards = [Forward(d, k) for k in range(m)]
    order: list[Instruction] = [*forwards[:ahead]]
    for k in range(m):
        order.append(BackwardInput(d, k))
        order += [BackwardWeight(d, k - behind)] if k >= behind else []
        order += forwards[k + ahead : k + ahead + 1]
    return order + [BackwardWeight(d, k) for k in range(max(0, m - behind), m)]


def zb_v(p: int, m: int) -> Order:
    """Zero-bubble in the memory of 1F1B (ZB-V): two stages a device, placed as a V.

    Device d has stage d, on the way out, and stage 2p-1-d, on the way home: the last
    device turns round by itself, and the first one computes the loss. If m >= 2p - 1,
    no device is idle from its first to its last computation, and each holds 2p
    activations of its stages, which are half as large.
    """
    full = max(m, 2 * p - 1)  # fewer are planned as so many, and the others left out
    lists: Order = []
    for d in range(p):
        F1, I1, W1 = [(kind, d) for kind in HALVES]
        F2, I2, W2 = [(kind, 2 * p - 1 - d) for kind in HALVES]
        order = [
            *[F1] * (2 * (p - d) - 1),  # until the first micro-batch is back from p-1
            *[F2, F1] * d,  # until its gradient is; 2p activations are held then,
            *[F2, I2, W2] * (p - d),  # and each new one takes the place of an old one
            *[F1, I1, W1, F2, I2, W2] * (full - p),
            *[I1, I2] * d,  # in a hurry: the devices before wait for the gradients
            *[I1, W1] * (p - d),
            *[W2] * d,
            *[W1] * d,
        ]
        lists.append([i for i in _numbered(order) if i.micro < m])
    return lists if m == full else _weights_in_gaps(lists, [*range(p), *range(p)[::-1]])


def _weights_in_gaps(lists: Order, ranks: Sequence[int]) -> Order:
    """Move each weights' gradient to where its device would wait for an input.

    Play the lists slot by slot. A device computes a weights' gradient if the input of
    its next computation is missing, or if another forward would exceed 2p activations.
    """
    p = len(lists)
    left = [deque(i for i in each if type(i) is not BackwardWeight) for each in lists]
    weights: list[deque[Instruction]] = [deque() for _ in lists]
    order: Order = [[] for _ in lists]
    held = [0] * p
    done: set[Name] = set()
    while any(left) or any(weights):
        found = []
        for d in range(p):
            i = left[d][0] if left[d] else None
            full = type(i) is Forward and held[d] == 2 * p
            if i and not full and needs(i, ranks) <= done:
                found.append((d, left[d].popleft()))
            elif weights[d]:
                found.append((d, weights[d].popleft()))
        for d, i in found:  # all devices compute in the same slot
            order[d].append(i)
            done.add(made(i))
            held[d] += {Forward: 1, BackwardWeight: -1}.get(type(i), 0)
            if type(i) is BackwardInput:
                weights[d].append(BackwardWeight(i.stage, i.micro))
    return order


def _numbered(order: Iterable[Work]) -> list[Instruction]:
    """Give each kind of work at each stage the micro-batches 0, 1, 2 and so on."""
    count: Counter[Work] = Counter()
    found = []
    for kind, stage in order:
        found.append(kind(stage, count[kind, stage]))
        count[kind, stage] += 1
    return found
