"""Graders for collectives: all-reduce, reduce-scatter, and plans as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from ..backends import get_backend
from ..backends.protocol import Backend
from ..backends.tracking import track
from ..errors import PlanError
from ..observe.ledger import Ledger, ledger
from ..plans.allreduce import ALLREDUCE
from ..plans.rounds import Round, even_bounds
from ..plans.verify import verify
from .report import (
    Report,
    Wrong,
    called,
    compare,
    grade,
    host,
    listed,
    places,
    same_bits,
    separate,
)

WHERE = "All-Reduce: Ring, Tree, and Hierarchical"
TOGETHER = "Transfers that could happen at once are in rounds of their own."
SHAPES = [(1,), (2,), (5,), (7,), (3, 4)]


def vectors(n: int, shape: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    """Return an array per rank; every sum of some of them is another number."""
    rng = np.random.default_rng([n, seed])
    return [rng.normal(size=shape) + 10.0**rank for rank in range(n)]


def allreduce(
    f: Callable[..., Any], backend: str | None = None, algorithm: str = ""
) -> Report:
    """Grade `f(data)`, which sums a list of one tensor per device over the devices.

    It may write the sum into every tensor, return a list of sums, or return them
    stacked. Each device needs the same bits, in memory of its own. With an `algorithm`,
    such as `ring`, it may send no more messages than the library's, take no more
    rounds, and its busiest device send no more bytes. What is sent is counted as after
    `track_devices`, with Paddle only what `allreduce(data, plan)` sends.
    """
    B = get_backend(backend)
    cases = [(n, shape) for n in range(1, 7) for shape in SHAPES]
    covers = "1 to 6 devices, up to 12 elements, each twice"
    covers += f", messages and bytes of {algorithm}" if algorithm else ""
    run, words = partial(_sums, f, B, algorithm), "{:device}, shape {}"
    return grade("allreduce", covers, WHERE, run, words, cases)


def _sums(
    f: Callable[..., Any], B: Backend, algorithm: str, n: int, shape: tuple[int, ...]
) -> None:
    for seed in (0, 1):  # the second call must know nothing of the first
        with track(B.name) if algorithm else nullcontext(), ledger() as moved:
            _sum(f, B, n, shape, seed)
        # Ranks that share one of several GPUs are counted as one device.
        if algorithm and n > 1 and not 1 < B.gpu_count() < n:
            usual = [*ALLREDUCE[algorithm](n, int(np.prod(shape)))]
            _promised(moved, [r for r in usual if len(r)], n)


def _promised(moved: Ledger, usual: Sequence[Round], n: int) -> None:
    """Compare what was sent, in elements of 8 bytes, with the rounds of a plan."""
    if not moved.bytes:
        words = "Tensors are copied outside the framework, or with Paddle: there, only \
`allreduce(data, plan)` is counted."
        raise Wrong("The ledger saw no message.", words)
    sent, promised = max(moved.sent.values()), 8 * busiest(usual, n)
    if sent > promised:
        found = f"Expected at most {promised} bytes from a device, got {sent}."
        raise Wrong(found, "One device sends whole vectors where a part would do.")
    messages = sum(len(r) for r in usual)
    if moved.messages > messages:
        found = f"Expected at most {messages} messages, got {moved.messages}."
        raise Wrong(found, "Parts are sent more often than needed.")
    if len(usual) < moved.rounds < moved.messages:
        found = f"Expected {len(usual)} rounds, got {moved.rounds}."
        raise Wrong(found, TOGETHER)


def _sum(
    f: Callable[..., Any], B: Backend, n: int, shape: tuple[int, ...], seed: int
) -> None:
    values = vectors(n, shape, seed)
    tensors = [
        B.array(v, device) for v, device in zip(values, places(B, n), strict=True)
    ]
    data = [*tensors]
    answer = called(f, data)
    right = [sum(values, np.zeros(shape))] * n
    summed = tensors if answer is None else [*answer]
    got = [host(x, B) for x in summed]
    if answer is None and all(
        np.allclose(host(x, B), right[0]) for x in data
    ):  # the list has the sums; the tensors may not
        words = (
            "Entries of the list were rebound: the devices' own tensors are as before."
        )
        compare(got, right, [(words, [right[0], *values[1:]]), (words, values)])
        compare(got, right, [(words, got)])
    mistakes = [
        ("Only device 0 has the sum: it was not sent back.", [right[0], *values[1:]]),
        ("Nothing was written: a new tensor, or a copy, has the sum.", values),
        ("This is the mean, and not the sum.", [x / n for x in right]),
        ("Device 0's own values are missing.", [x - values[0] for x in right]),
        ("Device 0's own values are counted twice.", [x + values[0] for x in right]),
        ("The last device's values are missing.", [x - values[-1] for x in right]),
        ("Each device has added those before it: sums were read while others wrote.",
         list(np.cumsum(values, axis=0))),
        ("Each device has only its own values and its left neighbor's.",
         [values[r] + values[r - 1] for r in range(n)]),
    ]  # fmt: skip
    compare(got, right, mistakes)
    same_bits([[x] for x in got])
    separate(B, summed, "Devices share one sum: a device has memory of its own.")


def reduce_scatter(f: Callable[..., Any], backend: str | None = None) -> Report:
    """Grade `f(data)`, which returns for each device its part of the sum.

    data: one vector per device, which it may write to. Device r gets the elements of
    part r of `even_bounds(elements, devices)`, and parts may be empty.
    """
    B = get_backend(backend)
    cases = [
        (n, length, seed)
        for n in range(1, 6)
        for length in (1, 2, 4, 5, 7, 12)
        for seed in (0, 1)
    ]
    covers, where = (
        "1 to 5 devices, up to 12 elements, each twice",
        "Sharding: ZeRO \
and FSDP",
    )
    run, words = partial(_part, f, B), "{:device}, {:element}"
    return grade("reduce_scatter", covers, where, run, words, cases)


def _part(f: Callable[..., Any], B: Backend, n: int, length: int, seed: int) -> None:
    values, bounds = vectors(n, (length,), seed), even_bounds(length, n)
    local = places(B, n)
    data = [B.array(v, device) for v, device in zip(values, local, strict=True)]
    answer = listed(called(f, data), n, "parts")
    total = sum(values, np.zeros(length))

    def parts(vector: Callable[[int], np.ndarray], shift: int = 0) -> list[np.ndarray]:
        cuts = [bounds[(r + shift) % n] for r in range(n)]
        return [vector(r)[a:b] for r, (a, b) in enumerate(cuts)]

    mistakes = [
        ("Each device kept its own values: nothing was summed.",
         parts(values.__getitem__)),
        ("Each device has the part of its right neighbor.", parts(lambda r: total, 1)),
        ("Each device has the part of its left neighbor.", parts(lambda r: total, -1)),
        ("Every device has the whole sum: that is an all-reduce.", [total] * n),
        ("These are parts of the mean.", parts(lambda r: total / n)),
    ]  # fmt: skip
    got = [host(x, B).reshape(-1) for x in answer]
    compare(got, parts(lambda r: total), mistakes)


def plan(f: Callable[..., Any], algorithm: str = "") -> Report:
    """Grade `f(ranks, length)`, which yields the rounds of an all-reduce.

    The plan is verified as data. With an `algorithm`, such as `ring`, it must also take
    no more rounds than the library's, and its busiest rank send no more elements.
    """
    lengths = (0, 1, 2, 3, 7, 8, 16, 17)
    cases = [(n, length) for n in range(1, 9) for length in lengths]
    covers = "1 to 8 ranks, up to 17 elements"
    covers += f", rounds and bytes of {algorithm}" if algorithm else ""
    run, words = partial(_planned, f, algorithm), "{:rank}, {:element}"
    return grade(f"plan {algorithm}".strip(), covers, WHERE, run, words, cases)


def _planned(f: Callable[..., Any], algorithm: str, n: int, length: int) -> None:
    rounds = [r for r in called(lambda: [*f(n, length)]) if len(r)]
    try:
        verify(rounds, n, length)
    except PlanError as error:
        again = "A part is added again that the sum already holds."
        words = [again] if "a second time" in str(error) else []
        raise Wrong(f"{error}.".replace("..", "."), *words) from error
    if not algorithm:
        return
    usual = [r for r in ALLREDUCE[algorithm](n, length) if len(r)]
    if len(rounds) > len(usual):
        raise Wrong(f"Expected {len(usual)} rounds, got {len(rounds)}.", TOGETHER)
    most, promised = busiest(rounds, n), busiest(usual, n)
    if most > promised:
        found = f"Expected at most {promised} elements from a rank, got {most}."
        raise Wrong(found, "One rank sends whole vectors where a part would do.")


def busiest(rounds: Sequence[Round], ranks: int) -> int:
    """Count the elements that the busiest rank sends."""
    sent = np.zeros(ranks, int)
    for this_round in rounds:
        np.add.at(sent, this_round.source, this_round.length)
    return int(sent.max(initial=0))
