"""Graders for a run of many steps: sampler, learning rate, resumption."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..backends import get_backend
from ..backends.protocol import Backend
from .compare import compare, host, unchanged
from .report import FORM, Function, Report, Wrong, called, grade, listed, number, whole


def sampler(f: Function) -> Report:
    """Grade `f(n, ranks, rank, epoch)`, which returns the indices of a rank's examples.

    Every rank gets equally many in each epoch, together they cover all n examples with
    as few repetitions as that allows, and the order changes from epoch to epoch.
    """
    sizes = [(8, 1), (8, 2), (9, 2), (12, 3), (13, 4), (50, 7)]
    sizes += [(1, 1), (1, 2), (2, 3), (3, 5), (3, 8)]  # fewer examples than ranks, too
    covers, words = (
        "1 to 8 ranks, up to 50 examples, four epochs",
        "{:example} on {:rank}",
    )
    where = "DistributedDataParallel and Its Relatives"
    return grade("sampler", covers, where, words, sizes, _sampled, f)


def _sampled(f: Function, n: int, ranks: int) -> None:
    def indices(rank: int, epoch: int) -> list[int]:
        return [*map(whole, listed(called(f, n, ranks, rank, epoch), "example"))]

    epochs = []
    for epoch in (0, 1, 2, 5):
        own = [indices(rank, epoch) for rank in range(ranks)]
        again, _, last = (
            indices(0, epoch),
            indices(0, epoch + 1),
            indices(ranks - 1, epoch),
        )
        epochs.append(own)
        lengths, flat = [len(x) for x in own], sum(own, [])
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
            words = f"Examples are counted from 0 to n - 1, here {n - 1}."
            raise Wrong(f"There is no example {min(unknown)}.", words)
        if missing := set(range(n)) - set(flat):
            words = "The remainder is dropped."
            if len(flat) >= n:
                words = "Others come twice: ranks shuffle in different orders, or draw \
with replacement."
            raise Wrong(f"No rank got example {min(missing)}.", words)
        if len(flat) != ranks * -(-n // ranks):
            words = "More examples are repeated than equally long parts need."
            found = f"Expected {ranks * -(-n // ranks)} indices, got {len(flat)}."
            raise Wrong(found, words)
    repeats = [own in epochs[:i] for i, own in enumerate(epochs) if i]
    if n >= 8 and all(repeats) or n >= 50 and any(repeats):  # not of few by chance
        words = "Different epochs are seeded alike."
        if all(repeats):
            words = "The epoch is not used: this is a forgotten `set_epoch`."
        raise Wrong("Some of the epochs 0, 1, 2 and 5 have the same order.", words)


def warmup(f: Function) -> Report:
    """Grade `f(step, lr, devices, warmup_steps)`, which returns a learning rate.

    It grows linearly from lr at step 0 to devices * lr at `warmup_steps`, and stays
    there (Goyal et al., 2017).
    """
    sizes = [(1, 4), (2, 4), (4, 1), (8, 5), (256, 100)]
    covers = "1 to 256 devices, before, at, and after the end of the warm-up"
    words = "{:device}, {:step} of warm-up"
    return grade("warmup", covers, "Large Batches", words, sizes, _warm, f)


def _warm(f: Function, k: int, steps: int) -> None:
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
        ("It starts at 0 instead of at the rate for one device, and one step early.",
         rates(0, k * lr, np.minimum((at + 1) / steps, 1))),
        ("It grows to sqrt(devices) times the rate.", rates(lr, np.sqrt(k) * lr)),
        ("It grows by devices times the rate, and so to one time more.",
         rates(lr, (k + 1) * lr)),
        ("It does not grow linearly, but exponentially.", [*(lr * k**share)]),
        ("It does not grow, but jumps at the end of the warm-up.",
         rates(lr, k * lr, 1.0 * (at >= steps))),
        ("It goes on growing after the warm-up.",
         rates(lr, k * lr, at / steps)),
        ("The warm-up ends one step early: steps are counted from 0.",
         rates(lr, k * lr, np.minimum((at + 1) / steps, 1))),
        ("The warm-up ends one step early: it is divided by warmup_steps - 1.",
         rates(lr, k * lr, np.minimum(at / max(steps - 1, 1), 1))),
        ("The warm-up ends one step late.",
         rates(lr, k * lr, np.clip((at - 1) / steps, 0, 1))),
    ]  # fmt: skip
    got = [np.array(number(called(f, int(i), lr, k, steps))) for i in at]
    compare(got, rates(lr, k * lr), mistakes, "step {}", close=1e-6)


class _Killed(BaseException):
    """Ends the reader's function in the middle, as a crash of its process would."""


def resume(f: Function, backend: str | None = None) -> Report:
    """Grade `f(gradient, start, steps, path)`, training that continues after a crash.

    From the weights `start`, a vector, it takes `steps` steps of SGD with momentum:
    v = 0.9 v + gradient(w, step), then w = w - 0.1 v, for the steps 0, 1, .... After
    each, it saves what the next one needs at `path`, which ends in `.npz`. If that file
    is there already, it continues from it. It returns the weights.
    """
    B = get_backend(backend)
    cases = [  # calls: the steps asked for, and the step in which it is killed
        ("1 step", [(1, 1)]),
        ("4 steps", [(4, 4)]),
        ("4 steps killed in step 2, then 4 steps", [(4, 2), (4, 4)]),
        ("2 steps, then 5 steps", [(2, 2), (5, 5)]),
        ("3 steps, then 3 steps", [(3, 3), (3, 3)]),
        ("6 steps killed in steps 1 and 4", [(6, 1), (6, 4), (6, 6)]),
    ]
    covers = "1 to 6 steps, up to two crashes, files that are moved"
    return grade("resume", covers, "Many Machines", "{}", cases, _resumed, f, B)


TARGETS = np.random.default_rng(7).normal(size=(8, 3))


def _gradient(w: np.ndarray, step: int) -> np.ndarray:
    return (1 + step % 3) * (w - TARGETS[step])


def _trained(
    w: np.ndarray, v: np.ndarray, steps: range, momentum: float = 0.9
) -> tuple[np.ndarray, ...]:
    """Return the weights and the velocity after these steps."""
    for step in steps:
        v = momentum * v + _gradient(w, step)
        w = w - 0.1 * v
    return w, v


def _resumed(f: Function, B: Backend, told: str, calls: list[tuple[int, int]]) -> None:
    done = 0
    with TemporaryDirectory() as folder, TemporaryDirectory() as elsewhere:
        path = Path(folder, "run0.npz")
        for i, (steps, kill) in enumerate(calls):
            if i:  # another process knows only the file: let other memory be lost
                other = str(Path(elsewhere, f"other{i}.npz"))
                first = B.array(TARGETS[0])
                called(f, lambda _, step: B.array(TARGETS[step]), first, 8, other)
            _call(f, B, path, done, steps, kill)
            done = kill
            path = path.replace(path.with_name(f"run{i + 1}.npz"))


def _call(
    f: Function, B: Backend, path: Path, done: int, steps: int, kill: int
) -> None:
    """Call f once, `done` steps into the run, and let it end in the step `kill`."""
    asked: list[int] = []
    saved: list[tuple[Path, bytes]] = []
    gone: list[bool] = []

    def gradient(w: Any, step: int) -> Any:
        asked.append(int(step))
        if step == kill:
            raise _Killed
        if path.exists():  # a link keeps this file, unless it is written in place
            link = path.with_name(f"link{len(saved)}-{path.name}")
            os.link(path, link)
            saved.append((link, link.read_bytes()))
        return B.array(_gradient(host(w), step % len(TARGETS)))

    def watch(frame: Any, event: str, found: Any) -> None:
        if event == "c_return" and saved and not gone and not path.exists():
            gone.append(True)

    start, none = np.array([1.0, -2.0, 0.5]), np.zeros(3)
    answer, given, before = None, B.array(start), sys.getprofile()
    try:
        sys.setprofile(watch)
        with suppress(_Killed):
            answer = called(f, gradient, given, steps, str(path))
    finally:
        sys.setprofile(before)
    unchanged([given], [start])
    expected = [*range(done, min(kill + 1, steps))]
    if asked != expected:
        found = f"Expected the steps {expected}, got {asked}."
        raise Wrong(found, _which_steps(asked, expected))
    if not path.exists():
        words = "No file was written there after a step; np.save adds .npy to names."
        if kill < steps:
            words = "It is not saved after each step: a crash loses what came before."
        raise Wrong("There is no file at `path`.", words)
    if gone:
        words = "The old checkpoint is removed before the new one is there: a crash \
between the two loses both."
        raise Wrong("For a moment, there is no file at `path`.", words)
    if any(link.read_bytes() != content for link, content in saved):
        words = "It is written in place: a crash leaves half a file."
        raise Wrong("A save changed the old checkpoint.", words)
    if kill < steps:
        return
    if answer is None:
        raise Wrong("Expected the weights, got None.", FORM)
    w, v = _trained(start, none, range(done))
    older_w, older_v = _trained(start, none, range(done - 1))
    other = sum(0.9**i * target for i, target in enumerate(TARGETS[::-1]))
    rest = range(done, steps)
    mistakes = [
        ("The velocity is kept in memory, and not in the file.", (w, other)),
        ("The velocity is not saved at `path`: it starts from zero.", (w, none)),
        ("The weights saved are those before the step.", (older_w, v)),
        ("The velocity saved is that before the step.", (w, older_v)),
        ("The weights are not saved.", (start, v)),
        ("Neither weights nor velocity are saved.", (start, none)),
    ]
    wrong = [(words, _trained(*state, rest)[:1]) for words, state in mistakes]
    without = _trained(start, none, range(steps), 0.0)[:1]
    wrong.append(("There is no momentum.", without))
    compare([answer], _trained(w, v, rest)[:1], wrong, "weights")


def _which_steps(asked: list[int], expected: list[int]) -> str:
    """Name the mistake that computes these steps instead of the expected ones."""
    if not asked and expected[0] == 0:
        return "No step was taken: `gradient` was not called."
    if not asked:
        return "The state of another run was continued: it is kept in memory, and not \
in the file."
    if asked[: len(expected)] == expected:
        return "It goes on after an error, or `steps` is counted from where it \
continues, and not from 0."
    done = expected[0] if expected else asked[0]
    words = {
        done: "",
        done + 1: "A step is skipped: the step saved is one too high.",
        done - 1: "A step is repeated: the step saved is one too low.",
    }
    again = "It starts again at step 0: the step is not saved, or no file is read."
    return again if done and asked[0] == 0 else words.get(asked[0], "")
