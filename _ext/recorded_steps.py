"""One training step of every parallelism strategy, recorded for the page's player.

Recorded, from the library's observers and from the tensors: who computed which layer or
micro-batch and in which order, every message with its bytes, ends and the line of the
library that sent it, the bytes that each device stores, and the weights after the step.
Modeled: the clock, see `CLOCK`. `all_runs` checks each run against the ledger and
against one device. _static/one_step.js plays what it returns.
"""

from __future__ import annotations

import linecache
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import d2lmulti
from d2lmulti.backends import nbytes
from d2lmulti.comm.group import local_group
from d2lmulti.events import observe
from d2lmulti.models.networks import Layer, make_mlp, run_layers
from d2lmulti.observe.pipeline_trace import PipelineTrace
from d2lmulti.parallel.buckets import reduce_in_buckets
from d2lmulti.parallel.pipeline import (
    cut_stages,
    gather_stages,
    make_lists,
    place_params,
    train_stages,
)
from d2lmulti.plans.pipeline import Durations, Forward

LIBRARY = Path(d2lmulti.__file__).resolve().parent
PARALLEL = str(LIBRARY / "parallel")
DEVICES = (2, 4, 8)
LAYERS, WIDTH, CLASSES, BATCH, MICRO_BATCHES, LR = 8, 64, 10, 64, 8, 0.1
LATENCY, BYTES_PER_UNIT = 0.1, 59_540  # the whole gradient takes 4 units and a latency
CLOCK = (
    "a layer's forward pass on an eighth of the batch takes 1, its backward pass 2, an "
    f"update of all weights 1, and a message {LATENCY} plus 1 for every "
    f"{BYTES_PER_UNIT:,} bytes. A device sends one message and receives one at a time"
)
B = d2lmulti.get_backend("numpy")
MODEL = make_mlp("player", (WIDTH, *[WIDTH] * (LAYERS - 1), CLASSES))
START = MODEL.initial(np.random.default_rng(0))
Event = tuple[Any, ...]


@dataclass(eq=False)
class Listener:
    """Writes down what the library reports, and what layers and updates report."""

    log: list[Event] = field(default_factory=list)
    owner: dict[int, int] = field(default_factory=dict)  # device of a tensor, by its id
    calls: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    lines: list[str] = field(default_factory=list)

    def on_round(self, this_round: Any, itemsize: int) -> None:
        rows = [(t.source, t.target, t.length * itemsize) for t in this_round]
        self.log.append(("round", rows, self.sender()))

    def on_mark(self, label: str) -> None:
        self.log.append(("mark", label))

    @contextmanager
    def on_work(self, tracks: Sequence[object], name: str, wait: Any) -> Iterator[None]:
        yield
        self.log.append(("end", name))

    def sender(self) -> int:
        """Return the number of the line of a strategy that sent what is exchanged."""
        frame = sys._getframe(1)
        while frame.f_back and not frame.f_code.co_filename.startswith(PARALLEL):
            frame = frame.f_back
        path, number = frame.f_code.co_filename, frame.f_lineno
        code = linecache.getline(path, number).strip()
        line = f"{Path(path).relative_to(LIBRARY.parent)}, line {number}: {code}"
        if line not in self.lines:
            self.lines.append(line)
        return self.lines.index(line)

    def own(self, device_params: Sequence[Sequence[Any]]) -> None:
        """Note which device has which tensors: simulated devices share the CPU."""
        self.owner.update(
            {id(p): d for d, own in enumerate(device_params) for p in own}
        )

    def device(self, params: Sequence[Any], number: int) -> int:
        """Tell which device computes a layer: by its weights, else by its turn."""
        turn = self.calls[number]
        self.calls[number] += 1
        return self.owner.get(id(params[0]), turn)

    def listened(self, layer: Layer) -> Layer:
        """Return a layer that reports who computes it, and what goes in and out."""
        number = number_of(layer.name)

        def forward(B: Any, params: Sequence[Any], X: Any) -> Any:
            out = layer.forward(B, params, X)
            device = self.device(params, number)
            self.log.append(("layer", device, number, nbytes(X), nbytes(out)))
            return out

        return layer._replace(forward=forward)

    def listened_shard(self, layer: Any) -> Any:
        """Do the same for a layer of a network under tensor parallelism."""
        number = number_of(layer.name)

        def forward(B: Any, params: Sequence[Any], X: Any, part: Any) -> Any:
            self.log.append(("layer", part.rank, number, nbytes(X), 0))
            out = yield from layer.forward(B, params, X, part)
            self.log.append(("out", part.rank, number, nbytes(out)))
            return out

        return layer._replace(forward=forward)

    def optimizer(self) -> d2lmulti.SGD:
        """Return an SGD that reports on which device it has updated."""
        listener = self

        class ListenedSGD(d2lmulti.SGD):
            def step_(self, params: Any, state: Any, lr: float, n: int) -> None:
                super().step_(params, state, lr, n)
                listener.log.append(("update", listener.owner[id(params[0])]))

        return ListenedSGD()


def number_of(layer: str) -> int:
    """Return the number of a layer from its name, `dense 3`."""
    return int(layer.rpartition(" ")[2])


class Play:
    """Plays a log on the modeled clock: devices, their ports, and what they store."""

    def __init__(self, devices: int, each: str = "layer") -> None:
        self.devices, self.each = devices, each
        self.now = [0.0] * devices
        self.sending, self.receiving = [0.0] * devices, [0.0] * devices
        self.blocks: list[list[Any]] = []
        self.messages: list[list[Any]] = []
        self.what: list[str] = []
        self.held = [
            [0, 0] for _ in range(devices)
        ]  # weights and gradients, activations
        self.memory: list[list[list[float]]] = [[] for _ in range(devices)]
        self.waiting: list[Event] = []  # rounds that have no name yet

    def hold(self, d: int, weights: int = 0, stored: int = 0, at: float = -1) -> None:
        """Let a device store more bytes, or with negative numbers fewer."""
        self.held[d][0] += weights
        self.held[d][1] += stored
        time = round(self.now[d] if at < 0 else at, 3)
        if self.memory[d] and self.memory[d][-1][0] == time:
            self.memory[d].pop()
        self.memory[d].append([time, *self.held[d]])

    def compute(self, d: int, kind: str, number: int, units: float) -> None:
        """Let a device compute as soon as it is free."""
        start = self.now[d]
        self.now[d] += units
        self.blocks.append([d, start, self.now[d], kind, number])

    def send(self, what: str) -> None:
        """Exchange the waiting rounds: each begins where the one before has ended."""
        label = self.label(what)
        for number, (_, rows, line) in enumerate(self.waiting, 1):
            done = [*self.now]
            for s, t, size in rows:
                ports = self.sending[s], self.receiving[t]
                start = max(self.now[s], self.now[t], *ports)
                end = start + LATENCY + size / BYTES_PER_UNIT
                self.sending[s] = self.receiving[t] = end
                done[s], done[t] = max(done[s], end), max(done[t], end)
                self.messages.append([s, t, start, end, size, label, number, line])
            self.now = done
        self.waiting = []

    def label(self, what: str) -> int:
        """Return the place of a message's purpose in the list of all."""
        if what not in self.what:
            self.what.append(what)
        return self.what.index(what)


@dataclass
class Run:
    """What a strategy's step left behind."""

    listener: Listener
    play: Play
    ledger: Any
    loss: float
    weights: Sequence[Sequence[Any]]  # whole ones, of every replica


def batch() -> tuple[Any, Any]:
    """Return the batch: clouds around a point per class."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, CLASSES, BATCH)
    X = rng.normal(0, 1, (BATCH, WIDTH)) + rng.normal(0, 1, (CLASSES, WIDTH))[y]
    return B.array(X), B.array(y)


def stored_bytes(params: Sequence[Any]) -> int:
    """Count the bytes of parameters and their gradients."""
    return sum(nbytes(p) + nbytes(B.grad(p)) for p in params)


def observed(step: Callable[[], Sequence[Any]], *listeners: Any) -> tuple:
    """Take a step with a ledger and listeners; return the ledger and the loss."""
    with d2lmulti.ledger() as ledger, observe(*listeners):
        losses = step()
    return ledger, sum(float(B.numpy(loss)) for loss in losses)


def run_data(k: int, algorithm: str) -> Run:
    """Data parallelism: all gradients are ready before the first one is sent."""
    listener, play = Listener(), Play(k)
    layers = tuple(map(listener.listened, MODEL.layers))

    def through(B: Any, params: Sequence[Any], X: Any) -> Any:
        return run_layers(B, layers, params, X)

    model = MODEL._replace(forward=through, layers=layers)
    devices, (X, y) = d2lmulti.devices(k, "numpy"), batch()
    replicas = [d2lmulti.get_params([B.array(p) for p in START], d) for d in devices]
    listener.own(replicas)
    options: dict[str, Any] = {"model": model, "optimizer": listener.optimizer()}
    options["reducer"] = partial(reduce_in_buckets, bucket_bytes=2**20)  # one bucket
    ledger, loss = observed(
        lambda: d2lmulti.train_batch(
            X, y, replicas, devices, LR, algorithm=algorithm, **options
        ),
        listener,
    )
    kept: dict[tuple[int, int], int] = {}
    for d, own in enumerate(replicas):
        play.hold(d, stored_bytes(own))
    for kind, *rest in listener.log:
        if kind == "layer":
            d, n, inside, out = rest
            kept[d, n] = out + (inside if n == 1 else 0)
            play.hold(d, 0, kept[d, n] - out)
            play.compute(d, "F", n, 8 / k)
            play.hold(d, 0, out)
        elif kind == "round":
            if kept:
                go_back(play, kept, LAYERS, 1, 16 / k)
            play.waiting.append((kind, *rest))
        elif kind == "update":
            play.send("sum of gradients")
            play.compute(rest[0], "U", 0, 1)
    return Run(listener, play, ledger, loss, replicas)


def go_back(play: Play, kept: dict, first: int, last: int, units: float) -> None:
    """Run layers backward on all devices, and free what they have stored."""
    for n in range(first, last - 1, -1):
        for d in range(play.devices):
            play.compute(d, "B", n, units)
            play.hold(d, 0, -kept.pop((d, n)))


def run_tensor(k: int) -> Run:
    """Tensor parallelism: sums of activations, and of their gradients, on a ring."""
    listener, play = Listener(), Play(k)
    devices, (X, y) = d2lmulti.devices(k, "numpy"), batch()
    split = d2lmulti.get_split(MODEL)
    split = split._replace(layers=tuple(map(listener.listened_shard, split.layers)))
    shards = d2lmulti.split_params([B.array(p) for p in START], devices, split)
    listener.own(shards)
    options = {"model": split, "optimizer": listener.optimizer()}
    ledger, loss = observed(
        lambda: d2lmulti.train_layers(
            X, y, shards, devices, LR, algorithm="ring", **options
        ),
        listener,
    )
    kept: dict[tuple[int, int], int] = {}
    left = LAYERS  # the topmost layer that has not run backward
    for d, own in enumerate(shards):
        play.hold(d, stored_bytes(own))
    for kind, *rest in listener.log:
        if kind == "layer":
            d, n, inside, _ = rest
            kept[d, n] = inside if n == 1 else 0
            play.hold(d, 0, kept[d, n])
            play.compute(d, "F", n, 8 / k)
        elif kind == "out":
            d, n, size = rest
            kept[d, n] += size
            play.hold(d, 0, size)
        elif kind == "round":
            play.waiting.append((kind, *rest))
        elif kind == "mark" and play.waiting:
            layer, direction = rest[0].rsplit(" ", 1)
            n, what = number_of(layer), "activations"
            if direction == "backward":
                go_back(play, kept, left, n, 16 / k)
                left, what = n - 1, "gradients"
            play.send(f"sum of {what}, layer {n}")
        elif kind == "update":
            go_back(play, kept, left, 1, 16 / k)
            left = 0
            play.compute(rest[0], "U", 0, 1 / k)
    return Run(listener, play, ledger, loss, d2lmulti.gather_params(shards, split))


def run_pipeline(k: int, schedule: str) -> Run:
    """Pipeline parallelism: the library's own trace has the times."""
    listener, play = Listener(), Play(k, "micro-batch")
    devices, (X, y) = d2lmulti.devices(k, "numpy"), batch()
    stages = cut_stages(MODEL, k)
    _, ranks = make_lists(schedule, k, MICRO_BATCHES, local_group(k))
    params = place_params([B.array(p) for p in START], stages, devices, ranks=ranks)
    listener.own(params)
    size = BATCH // MICRO_BATCHES * WIDTH * 8
    trace = PipelineTrace(
        Durations(
            forward=LAYERS / k,
            backward=2 * LAYERS / k,
            transfer=LATENCY + size / BYTES_PER_UNIT,
        )
    )
    options = {"schedule": schedule, "micro_batches": MICRO_BATCHES}
    ledger, loss = observed(
        lambda: train_stages(
            X,
            y,
            params,
            devices,
            LR,
            stages=stages,
            optimizer=listener.optimizer(),
            **options,
        ),
        listener,
        trace,
    )
    for d, i, start, end in trace.spans:
        kind = "F" if isinstance(i, Forward) else "B"
        play.blocks.append([d, start, end, kind, i.micro])
    rounds = [rest for kind, *rest in listener.log if kind == "round"]
    for span, (((s, t, sent),), line) in zip(trace.messages, rounds, strict=True):
        if (span.device, span.instruction.device, size) != (s, t, sent):
            raise AssertionError(f"the trace has {span}, the ledger {s} to {t}")
        label = play.label("activations" if t > s else "gradients")
        play.messages.append([s, t, span.start, span.end, sent, label, 0, line])
    for d in range(k):
        ends = [b[2] for b in play.blocks if b[0] == d]
        play.now[d] = max(ends + [m[3] for m in play.messages if d in m[:2]])
        play.hold(d, stored_bytes(params[d]), 0, 0)
        before = 0
        for time, _, stored in trace.levels(d):
            play.hold(d, 0, stored - before, time)
            before = stored
    for kind, *rest in listener.log:
        if kind == "update":
            play.compute(rest[0], "U", 0, 1 / k)
    return Run(listener, play, ledger, loss, [gather_stages(params)])


def run_zero(k: int) -> Run:
    """ZeRO 3: a layer's weights are gathered before each use."""
    listener, play = Listener(), Play(k)
    devices, (X, y) = d2lmulti.devices(k, "numpy"), batch()
    model = MODEL._replace(layers=tuple(map(listener.listened, MODEL.layers)))
    sharded = d2lmulti.shard_params([B.array(p) for p in START], devices, model, zero=3)
    listener.own(sharded)
    ledger, loss = observed(
        lambda: d2lmulti.train_shards(
            X, y, sharded, devices, LR, optimizer=listener.optimizer()
        ),
        listener,
    )
    sizes = {n: 8 * flat.size for n, flat in enumerate(sharded.flat_params, 1)}
    kept: dict[tuple[int, int], int] = {}
    for d, own in enumerate(sharded):
        play.hold(d, stored_bytes(own))
    for kind, *rest in listener.log:
        if kind == "round":
            play.waiting.append((kind, *rest))
        elif kind == "layer":
            turn, n, inside, out = rest
            d, again = turn % k, turn >= k
            if not again:  # the input is stored for the backward pass
                kept[d, n] = inside
                play.hold(d, 0, inside)
            play.compute(d, "R" if again else "F", n, 8 / k)
            if again or n == LAYERS:  # its graph lives until it has run backward
                kept[d, n] += out
                play.hold(d, 0, out)
            else:
                play.hold(d, -sizes[n])
        elif kind == "end" and " dense " in rest[0]:
            work, n = rest[0].split(" ")[0], number_of(rest[0])
            if work == "all-gather":
                for d in range(k):
                    play.hold(d, sizes[n])
                play.send(f"all-gather of weights, layer {n}")
            elif work == "backward":
                for d in range(k):
                    play.hold(d, sizes[n])  # the full gradient
                go_back(play, kept, n, n, 16 / k)
            elif work == "reduce-scatter":
                play.send(f"reduce-scatter of gradients, layer {n}")
                for d in range(k):
                    play.hold(d, -2 * sizes[n])
        elif kind == "update":
            play.compute(rest[0], "U", 0, 1 / k)
    return Run(listener, play, ledger, loss, d2lmulti.gather_shards(sharded))


# Key: title, the chapter that explains it, and what takes a step.
STRATEGIES: dict[str, tuple[str, str, Callable[[int], Run]]] = {
    "star": (
        "Data parallelism, star all-reduce",
        "chapters/data_parallel",
        partial(run_data, algorithm="star"),
    ),
    "ring": (
        "Data parallelism, ring all-reduce",
        "chapters/allreduce",
        partial(run_data, algorithm="ring"),
    ),
    "tensor": ("Tensor parallelism", "chapters/tensor_parallel", run_tensor),
    "gpipe": (
        "Pipeline parallelism, GPipe",
        "chapters/pipeline_parallel",
        partial(run_pipeline, schedule="gpipe"),
    ),
    "1f1b": (
        "Pipeline parallelism, 1F1B",
        "chapters/pipeline_parallel",
        partial(run_pipeline, schedule="1f1b"),
    ),
    "zero3": ("ZeRO 3 (FSDP)", "chapters/sharding", run_zero),
}


def one_device() -> tuple[float, list[np.ndarray]]:
    """Take the same step on one device; return the loss and the weights."""
    X, y = batch()
    (device,) = d2lmulti.devices(1, "numpy")
    params = d2lmulti.get_params([B.array(p) for p in START], device)
    losses = d2lmulti.train_batch(X, y, [params], [device], LR, model=MODEL)
    return sum(float(B.numpy(x)) for x in losses), [B.numpy(p) for p in params]


def check_clock(play: Play) -> None:
    """Raise AssertionError if a device computes, sends or receives two at a time."""
    for d in range(play.devices):
        for spans in (
            [b[1:3] for b in play.blocks if b[0] == d],
            [m[2:4] for m in play.messages if m[0] == d],
            [m[2:4] for m in play.messages if m[1] == d],
        ):
            spans.sort()
            for before, after in zip(spans, spans[1:], strict=False):
                if before[1] > after[0] + 1e-9:
                    raise AssertionError(f"device {d}: {before} overlaps {after}")


def packed(run: Run, loss: float, weights: Sequence[np.ndarray]) -> dict[str, Any]:
    """Check a run against its ledger and one device; return what the page shows."""
    play, ledger = run.play, run.ledger
    sent = [0] * play.devices
    for s, _, _, _, size, *_ in play.messages:
        sent[s] += size
    counted = [ledger.sent[d] for d in range(play.devices)]
    if (len(play.messages), sent) != (ledger.messages, counted):
        raise AssertionError(f"played {sent} bytes, the ledger has {counted}")
    check_clock(play)
    difference = max(
        float(np.abs(B.numpy(p) - q).max())
        for replica in run.weights
        for p, q in zip(replica, weights, strict=True)
    )
    if not (difference < 1e-13 and abs(run.loss - loss) < 1e-10 * abs(loss)):
        raise AssertionError(f"differs from one device by {difference:.1e}")
    end = max(span[1] for span in [b[1:3] for b in play.blocks])
    end = max([end, *(m[3] for m in play.messages)])
    busy = [0.0] * play.devices
    for d, start, stop, *_ in play.blocks:
        busy[d] += stop - start
    return {
        "devices": play.devices,
        "end": round(end, 3),
        "each": play.each,
        "what": play.what,
        "lines": run.listener.lines,
        "blocks": sorted(map(rounded, play.blocks), key=lambda b: (b[1], b[0])),
        "messages": sorted(map(rounded, play.messages), key=lambda m: (m[2], m[0])),
        "memory": play.memory,
        "sent": sent,
        "idle": [round(1 - b / end, 4) for b in busy],
        "difference": float(f"{difference:.1g}"),
    }


def rounded(row: list[Any]) -> list[Any]:
    """Round the times of a row."""
    return [round(x, 3) if isinstance(x, float) else x for x in row]


@cache  # for every page that shows them, and once more to write them
def all_runs() -> dict[str, dict[str, Any]]:
    """Return every recorded run by its strategy and number of devices: `ring 4`."""
    loss, weights = one_device()
    return {
        f"{key} {k}": packed(take(k), loss, weights)
        for key, (_, _, take) in STRATEGIES.items()
        for k in DEVICES
    }
