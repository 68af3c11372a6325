"""Record training runs with planted bugs, for the figure "Which run is broken?".

    python tools/record_bugs.py            # all of them, a few minutes

Each bug of tests/bugs is planted in a copy of the library, which then trains in the
way that enters the changed line: PyTorch on simulated devices, or processes of NumPy.
Recorded are what a user sees, the loss and the accuracy, and what a user does not see,
the largest difference of any weight on any device from one device's.
"""

from __future__ import annotations

import difflib
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT)]  # last: a copy's library comes first

import numpy as np  # noqa: E402
from bugs.bugs import BUGS, Bug  # noqa: E402
from evidence.planted import planted  # noqa: E402
from evidence.strategies import difference  # noqa: E402

import d2lmulti  # noqa: E402
from d2lmulti.backends import backend_of  # noqa: E402
from d2lmulti.data import load  # noqa: E402
from d2lmulti.errors import Diverged  # noqa: E402
from d2lmulti.files import write_atomically  # noqa: E402
from d2lmulti.models.networks import make_mlp  # noqa: E402
from d2lmulti.models.transformer import make_transformer  # noqa: E402
from d2lmulti.processes.launcher import launch  # noqa: E402
from d2lmulti.training import loop  # noqa: E402
from d2lmulti.training.strategies import choose_strategy  # noqa: E402

RECORD = "chapters/measured/planted_runs.json"
STEPS, EACH, RATED = 100, 4, 20  # a point of a curve each 4 steps; accuracies each 20
SEEDS = range(1, 4)  # of correct runs, to see how much their losses differ
SECONDS = 600  # for a run
MLP = make_mlp("mlp", (784, 64, 10))
BLOCK = make_transformer("transformer", width=24, heads=6, blocks=1)
MIXTURE = make_transformer("mixture", width=16, heads=2, blocks=1, experts=2)
DIGITS: dict[str, Any] = {"model": MLP, "batch_size": 73, "lr": 0.05}
EVEN = DIGITS | {"batch_size": 72}
DEEP = DIGITS | {"model": "deep_mlp"}
TEXT: dict[str, Any] = {"dataset": "text", "model": BLOCK, "batch_size": 32, "lr": 0.1}


class Way(NamedTuple):
    """A way to train: its words on the page, devices, and arguments of `train`."""

    words: str
    devices: int
    task: dict[str, Any]
    options: dict[str, Any]


WAYS = {
    "star": Way("data parallelism, star all-reduce", 3, DIGITS, {}),
    "even": Way("data parallelism, star all-reduce", 3, EVEN, {}),
    "buckets": Way(
        "data parallelism in buckets, ring all-reduce", 3, DIGITS,
        {"algorithm": "ring", "bucket_bytes": 50_000},
    ),
    "statistics": Way(
        "data parallelism, synchronized batch normalization", 3,
        {"model": "lenet_sync_bn", "batch_size": 12, "lr": 0.02}, {},
    ),
    "tensor": Way("tensor parallelism", 2, DIGITS, {"strategy": "tensor"}),
    "blocks": Way("tensor parallelism", 2, TEXT, {"strategy": "tensor"}),
    "pipeline": Way(
        "pipeline parallelism, zero-bubble schedule", 3, DEEP,
        {"strategy": "pipeline", "schedule": "zero_bubble"},
    ),
    "sharded": Way(
        "sharded data parallelism, ZeRO 2", 3, DIGITS,
        {"strategy": "sharded", "zero": 2},
    ),
    "sequence": Way(
        "sequence parallelism, ring attention", 3, TEXT,
        {"strategy": "mesh", "mesh": {"sequence": 3}, "micro_batches": 1},
    ),
    "experts": Way(
        "expert parallelism", 2, TEXT | {"model": MIXTURE},
        {"strategy": "mesh", "mesh": {"expert": 2}, "micro_batches": 1},
    ),
    "processes": Way(
        "data parallelism in processes, ring all-reduce", 3, DIGITS,
        {"algorithm": "ring"},
    ),
}  # fmt: skip


class Enough(Exception):
    """A run has been watched for long enough."""


class Watch:
    """Notes what a run shows after each step, and how far its weights are off."""

    def __init__(self, want: dict[str, np.ndarray] | None) -> None:
        self.want = want  # weights of one device: for each tensor, all its points
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.differences: list[float] = []
        self.weights: list[list[np.ndarray]] = []

    def follow(self, split: Any, data: Any) -> Any:
        """Make a strategy report each of its steps."""
        step = split.step

        def followed(batch: Any, lr: float) -> Any:
            losses = step(batch, lr)
            B = backend_of(losses[0])
            loss = sum(float(B.numpy(each)) for each in losses) / batch.n
            self.note(loss, split, data)
            return losses

        split.step = followed
        return split

    def note(self, loss: float, split: Any, data: Any) -> None:
        """Take down a step; raise `Enough` after the last, and for no finite loss."""
        self.losses.append(loss)
        number = len(self.losses)
        if not math.isfinite(loss):
            raise Enough
        if number % EACH:
            return
        replicas, devices = split.replicas()
        B = backend_of(replicas[0][0])
        found = [[B.numpy(p) for p in params] for params in replicas]
        if self.want is None:
            self.weights.append(found[0])
        else:
            want = [points[number // EACH - 1] for points in self.want.values()]
            self.differences.append(max(difference(own, want) for own in found))
        if number % RATED == 0:
            right = loop.evaluate(
                replicas, data.test_X, data.test_y, devices, model=split.model
            )
            self.accuracies.append(right)
        if number == STEPS:
            raise Enough


def trained(
    task: dict[str, Any],
    devices: int = 1,
    options: dict[str, Any] | None = None,
    want: dict[str, np.ndarray] | None = None,
    seed: int = 0,
    backend: str = "torch",
) -> Watch:
    """Train for `STEPS` steps with the library's `train`, and watch."""
    watch, data = Watch(want), load(task.get("dataset", "digits"), "float64")
    watched = patch.object(
        loop,
        "choose_strategy",
        lambda *which: watch.follow(choose_strategy(*which), data),
    )
    settings = {"dtype": "float64", "backend": backend, "epochs": STEPS, "seed": seed}
    with watched, suppress(Enough, Diverged):
        d2lmulti.train(devices, **task, **(options or {}), **settings)
    watch.want = None  # a process sends back what is left
    return watch


def curves(watches: list[Watch]) -> dict[str, list[int]]:
    """Return the points of one run, which several ranks may have watched.

    Losses are means over `EACH` steps in 1/10,000, of at most 100; accuracies are in
    1/1,000; of differences it is ten times the decimal logarithm, of at least 1e-17.
    """
    losses = [sum(each) for each in zip(*(w.losses for w in watches), strict=True)]
    whole = [losses[i : i + EACH] for i in range(0, len(losses) - EACH + 1, EACH)]
    means = [sum(part) / EACH for part in whole]
    most = [max(each) for each in zip(*(w.differences for w in watches), strict=True)]
    points = len([x for x in means if math.isfinite(x)])
    return {
        "loss": [round(1e4 * min(x, 100)) for x in means[:points]],
        "accuracy": [round(1e3 * x) for x in watches[0].accuracies],
        "difference": [
            round(10 * math.log10(max(x, 1e-17))) for x in most if math.isfinite(x)
        ][:points],
    }


def on_way(name: str, want: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """Train in one way, and compare with one device."""
    way = WAYS[name]
    draw = np.random.default_rng  # one bug asks for another seed each time
    np.random.default_rng = lambda seed=SEEDS[-1]: draw(seed)
    if name != "processes":
        return curves([trained(way.task, way.devices, way.options, want)])
    run = launch(
        trained, way.devices, way.task, way.devices, way.options, want,
        backend="numpy", engine="shared_memory", timeout=SECONDS,
    )  # fmt: skip
    return curves(run.values)


def inside(folder: str, way: str) -> None:
    """Train with the library of a copy, in a process of its own."""
    if not d2lmulti.__file__.startswith(folder):
        raise RuntimeError(f"expected the copy in {folder}, got {d2lmulti.__file__}")
    with np.load(Path(folder) / "want.npz") as want:
        found = on_way(way, dict(want))
    (Path(folder) / "found.json").write_text(json.dumps(found), encoding="utf-8")


def network(way: str) -> str:
    """Name the network that is trained."""
    model = WAYS[way].task["model"]
    return getattr(model, "name", model)


def alone(way: str) -> dict[str, np.ndarray]:
    """Return the weights of one device, for each tensor at all points."""
    tensors = zip(*trained(WAYS[way].task).weights, strict=True)
    return {str(i): np.stack(points) for i, points in enumerate(tensors)}


def in_copy(bug: Bug | None, way: str, want: dict[str, np.ndarray]) -> dict[str, Any]:
    """Train with a bug, or without one, in a process of its own; return the curves."""
    with planted(bug or BUGS[0]._replace(new=BUGS[0].old)) as copy:
        np.savez(copy / "want.npz", **want)
        paths = [copy, ROOT / "tests", ROOT / "tools", ROOT]
        command = "import sys, record_bugs; record_bugs.inside(*sys.argv[1:])"
        done = subprocess.run(
            [sys.executable, "-c", command, copy, way],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
            cwd=copy, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        if done.returncode:
            what = bug.name if bug else "the library"
            raise RuntimeError(f"{what}, {way}: {done.stderr[-2000:]}")
        return json.loads((copy / "found.json").read_text("utf-8"))


def spread(way: str) -> list[int]:
    """Return the least and the largest final loss of correct runs, by the seed."""
    finals = []
    for seed in SEEDS:
        losses = trained(WAYS[way].task, seed=seed).losses[-RATED:]
        finals.append(round(1e4 * sum(losses) / len(losses)))
    return [min(finals), max(finals)]


def changed(bug: Bug) -> list[str]:
    """Return the lines that a bug removes and adds, with the sign of a diff."""
    old = (ROOT / "d2lmulti" / bug.file).read_text("utf-8")
    new = old.replace(bug.old, bug.new).splitlines()
    lines = [*difflib.unified_diff(old.splitlines(), new, n=0, lineterm="")][2:]
    lines = [line for line in lines if not line.startswith("@@")]
    indent = min(len(line[1:]) - len(line[1:].lstrip()) for line in lines)
    return [f"{line[0]} {line[1 + indent :]}" for line in lines]


def about(bug: Bug) -> dict[str, Any]:
    """Return what the page says of a bug."""
    test = bug.test.rpartition("::")[2].partition("[")[0]
    file = f"d2lmulti/{bug.file}"
    shown = {"bug": bug.name, "file": file, "diff": changed(bug), "test": test}
    return shown | {"way": bug.way}


def left_out() -> dict[str, str]:
    """Return the bugs that are not recorded, each with the reason."""
    return {bug.name: bug.unseen for bug in BUGS if bug.unseen}


def record(step: Any) -> dict[str, Any]:
    """Make all runs, two at a time."""
    shown = [bug for bug in BUGS if not bug.unseen]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        first = {str(way.task): key for key, way in reversed(WAYS.items())}
        wants = {task: pool.submit(alone, key) for task, key in first.items()}
        one_way = {network(key): key for key in WAYS}
        spreads = {name: pool.submit(spread, key) for name, key in one_way.items()}
        correct, broken = {}, {}
        for key, way in WAYS.items():
            want = wants[str(way.task)].result()
            correct[key] = pool.submit(in_copy, None, key, want)
            for bug in shown:
                if bug.way == key:
                    broken[bug.name] = pool.submit(in_copy, bug, key, want)
        ways = {}
        for key, way in WAYS.items():
            step(f"{key}, correct")
            words = {"words": way.words, "devices": way.devices}
            words |= {"network": network(key)}
            ways[key] = words | correct[key].result()
        bugs = []
        for bug in shown:
            step(bug.name)
            bugs.append(about(bug) | broken[bug.name].result())
        seeds = {name: each.result() for name, each in spreads.items()}
    return {"steps": STEPS, "each": EACH, "ways": ways, "bugs": bugs,
            "left_out": left_out(), "spread": seeds}  # fmt: skip


def written(found: dict[str, Any]) -> str:
    """Lay the record out: a line for each list of points."""
    text = json.dumps(found, indent=1, ensure_ascii=False)
    return re.sub(r"\[[-\d,\s]*\]", lambda m: re.sub(r"\s+", "", m[0]), text) + "\n"


if __name__ == "__main__":
    began = time.monotonic()
    found = record(lambda what: print(f"{time.monotonic() - began:6.0f} s  {what}"))
    write_atomically(ROOT / RECORD, written(found).encode())
