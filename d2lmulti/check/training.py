"""Graders for a run of many steps: sampler, learning rate, resumption."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..backends import get_backend
from ..backends.protocol import Backend
from .report import Report, Wrong, called, compare, grade, host, unchanged


def sampler(f: Callable[..., Any]) -> Report:
    """Grade `f(n, ranks, rank, epoch)`, which returns the indices of a rank's examples.

    Every rank gets equally many in each epoch, together they cover all n examples with
    as few repetitions as that allows, and the order changes from epoch to epoch.
    """
    sizes = [(8, 1), (8, 2), (9, 2), (12, 3), (13, 4), (50, 7)]
    sizes += [(1, 1), (1, 2), (2, 3), (3, 5), (3, 8)]  # fewer examples than ranks, too
    covers, where = "1 to 8 ranks, up to 50 examples, four epochs", "Data Parallelism"
    words = "{:example} on {:rank}"
    return grade("sampler", covers, where, partial(_sampled, f), words, sizes)


def _sampled(f: Callable[..., Any], n: int, ranks: int) -> None:
    epochs = []
    for epoch in (0, 1, 2, 5):
        own = [[int(i) for i in called(f, n, ranks, r, epoch)] for r in range(ranks)]
        again = [int(i) for i in called(f, n, ranks, 0, epoch)]
        called(f, n, ranks, 0, epoch + 1)  # changes nothing for the other ranks
        last = [int(i) for i in called(f, n, ranks, ranks - 1, epoch)]
        epochs.append(own)
        lengths, flat = [len(x) for x in own], [i for x in own for i in x]
        if again != own[0] or last != own[-1]:
            words = "It is not seeded by the epoch, so ranks draw different orders."
            raise Wrong("Asked twice for one rank and epoch, it differs.", words)
        if min(n, ranks) > 1 and all(sorted(x) == list(range(n)) for x in own):
            words = "Every rank trains on all data: an epoch costs as much as before."
            raise Wrong(f"Expected {-(-n // ranks)} examples per rank, got {n}.", words)
        if len(set(lengths)) > 1:
            words = "A rank with more batches waits forever for the others' gradients."
            raise Wrong(f"Ranks got {lengths} examples.", words)
        if unknown := set(flat) - set(range(n)):
            raise Wrong(f"There is no example {min(unknown)}.")
        if missing := set(range(n)) - set(flat):
            words = "The remainder is dropped, or ranks shuffle in different orders."
            raise Wrong(f"No rank got example {min(missing)}.", words)
        if len(flat) != ranks * -(-n // ranks):
            raise Wrong(f"Expected {ranks * -(-n // ranks)} indices, got {len(flat)}.")
    if n >= 8 and any(a == b for i, a in enumerate(epochs) for b in epochs[:i]):
        words = "The epoch is not used: this is a forgotten `set_epoch`."
        raise Wrong("Two of the epochs 0, 1, 2 and 5 have the same order.", words)


def warmup(f: Callable[..., Any]) -> Report:
    """Grade `f(step, lr, devices, warmup_steps)`, which returns a learning rate.

    It grows linearly from lr at step 0 to devices * lr at `warmup_steps`, and stays
    there (Goyal et al., 2017).
    """
    sizes = [(1, 4), (2, 4), (4, 1), (8, 5), (256, 100)]
    covers = "1 to 256 devices, before, at, and after the end of the warm-up"
    words = "{:device}, {:step} of warm-up"
    return grade("warmup", covers, "Large Batches", partial(_warm, f), words, sizes)


def _warm(f: Callable[..., Any], k: int, steps: int) -> None:
    lr, at = 0.1 + 0.01 * k, np.arange(3 * steps + 2.0)
    share = np.minimum(at / steps, 1)

    def rates(first: float, last: float, share: np.ndarray = share) -> list[np.ndarray]:
        return [*(first + (last - first) * share)]

    mistakes = [
        ("The learning rate is not scaled by the number of devices.",
         rates(lr, lr)),
        ("There is no warm-up: the first steps are too large.",
         rates(k * lr, k * lr)),
        ("It starts at 0 instead of at the rate for one device.", rates(0, k * lr)),
        ("It grows to sqrt(devices) times the rate.", rates(lr, np.sqrt(k) * lr)),
        ("It goes on growing after the warm-up.",
         rates(lr, k * lr, at / steps)),
        ("The warm-up ends one step early: steps are counted from 0.",
         rates(lr, k * lr, np.minimum((at + 1) / steps, 1))),
        ("The warm-up ends one step late.",
         rates(lr, k * lr, np.clip((at - 1) / steps, 0, 1))),
    ]  # fmt: skip
    got = [np.array(float(called(f, int(i), lr, k, steps))) for i in at]
    compare(got, rates(lr, k * lr), mistakes, "step {}", close=1e-6)


class _Killed(BaseException):
    """Ends the reader's function in the middle, as a crash of its process would."""


def resume(f: Callable[..., Any], backend: str | None = None) -> Report:
    """Grade `f(gradient, start, steps, path)`, training that continues after a crash.

    From the weights `start`, a vector, it takes `steps` steps of SGD with momentum:
    v = 0.9 v + gradient(w, step), then w = w - 0.1 v, for the steps 0, 1, .... After
    each, it saves what the next one needs at `path`, which ends in `.npz`. If that file
    is there already, it continues from it. It returns the weights.
    """
    B = get_backend(backend)
    cases: list[tuple[str, list[tuple[int, int | None]]]] = [
        ("1 step", [(1, None)]),
        ("4 steps", [(4, None)]),
        ("4 steps killed in step 2, then 4 steps", [(4, 2), (4, None)]),
        ("2 steps, then 5 steps", [(2, None), (5, None)]),
        ("3 steps, then 3 steps", [(3, None), (3, None)]),
        ("6 steps killed in steps 1 and 4", [(6, 1), (6, 4), (6, None)]),
    ]
    covers = "1 to 6 steps, up to two crashes, files that are moved"
    run = partial(_resumed, f, B)
    return grade("resume", covers, "Many Machines", run, "{}", cases)


TARGETS = np.random.default_rng(7).normal(size=(8, 3))


def _gradient(w: np.ndarray, step: int) -> np.ndarray:
    return (1 + step % 3) * (w - TARGETS[step])


def _trained(
    w: np.ndarray, v: np.ndarray, steps: range
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights and the velocity after these steps."""
    for step in steps:
        v = 0.9 * v + _gradient(w, step)
        w = w - 0.1 * v
    return w, v


def _resumed(
    f: Callable[..., Any], B: Backend, told: str, calls: list[tuple[int, int | None]]
) -> None:
    done = 0
    with TemporaryDirectory() as folder, TemporaryDirectory() as elsewhere:
        path = Path(folder, "run0.npz")
        for i, (steps, kill) in enumerate(calls):
            if i:  # another process knows only the file: let other memory be lost
                other = Path(elsewhere, f"other{i}.npz")
                called(f, lambda w, step: B.array(TARGETS[step]), B.array(TARGETS[0]),
                       len(TARGETS), str(other))  # fmt: skip
            _call(f, B, path, done, steps, kill)
            done = steps if kill is None else kill
            path = path.replace(path.with_name(f"run{i + 1}.npz"))


def _call(
    f: Callable[..., Any], B: Backend, path: Path, done: int, steps: int, kill: Any
) -> None:
    """Call f once, `done` steps into the run, and let it end in the step `kill`."""
    start, none, asked = np.array([1.0, -2.0, 0.5]), np.zeros(3), []
    saved: list[tuple[Path, bytes]] = []

    def gradient(w: Any, step: int) -> Any:
        if step == kill:
            raise _Killed
        asked.append(int(step))
        if path.exists():  # a link keeps this file, unless it is written in place
            link = path.with_name(f"link{len(saved)}-{path.name}")
            os.link(path, link)
            saved.append((link, link.read_bytes()))
        return B.array(_gradient(host(w, B), step % len(TARGETS)))

    gone: list[bool] = []

    def watch(frame: Any, event: str, found: Any) -> None:
        if event == "c_return" and saved and not gone and not path.exists():
            gone.append(True)

    answer, given, before = None, B.array(start), sys.getprofile()
    try:
        sys.setprofile(watch)
        with suppress(_Killed):
            answer = called(f, gradient, given, steps, str(path))
    finally:
        sys.setprofile(before)
    unchanged(B, [given], [start])
    if asked != [*range(done, steps if kill is None else kill)]:
        found = f"Expected the steps from {done} on, once each, got {asked}."
        raise Wrong(found, _which_steps(asked, done))
    if not path.exists():
        words = "No file was written there; np.save adds .npy to other names."
        raise Wrong("There is no file at `path`.", words)
    if gone:
        words = "The old checkpoint is removed before the new one is there: a crash \
between the two loses both."
        raise Wrong("For a moment, there is no file at `path`.", words)
    if any(link.read_bytes() != content for link, content in saved):
        words = "It is written in place: a crash leaves half a file."
        raise Wrong("A save changed the old checkpoint.", words)
    if kill is not None:
        return
    w, v = _trained(start, none, range(done))
    rest = range(done, steps)
    elsewhere = none  # the velocity of the run in between
    for target in TARGETS:
        elsewhere = 0.9 * elsewhere + target
    mistakes = [
        ("The velocity is kept in memory, and not in the file.", (w, elsewhere)),
        ("The velocity is not saved: momentum starts from zero.", (w, none)),
        ("The weights are not saved.", (start, v)),
        ("Neither weights nor velocity are saved.", (start, none)),
    ]  # fmt: skip
    compare(
        [] if answer is None else [host(answer, B)],
        [_trained(w, v, rest)[0]],
        [(words, [_trained(*state, rest)[0]]) for words, state in mistakes],
        "weights",
    )


def _which_steps(asked: list[int], done: int) -> str:
    """Name the mistake that computes these steps instead of those from `done` on."""
    if not asked:
        return "The state of another run was continued: it is kept in memory, and not \
in the file."
    if done and asked[:1] == [0]:
        return "It starts again at step 0: the step is not saved, or no file is read."
    if asked[:1] == [done + 1]:
        return "A step is skipped: the step saved is one too high."
    if asked[:1] == [done - 1]:
        return "A step is repeated: the step saved is one too low."
    return ""
