"""The training steps that are recorded: one function for each parallelism strategy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from step_clock import BYTES_PER_UNIT, LATENCY, Play
from step_listener import Listener, number_of

import d2lmulti
from d2lmulti.backends import nbytes
from d2lmulti.comm.group import local_group
from d2lmulti.comm.mesh import Mesh
from d2lmulti.events import observe
from d2lmulti.models.networks import make_mlp, run_layers
from d2lmulti.observe.pipeline_trace import PipelineTrace
from d2lmulti.parallel.buckets import reduce_in_buckets
from d2lmulti.parallel.mesh import gather_from_mesh, place_on_mesh, train_on_mesh
from d2lmulti.parallel.pipeline import (
    cut_stages,
    gather_stages,
    make_lists,
    place_params,
    train_stages,
)
from d2lmulti.plans.pipeline import (
    Backward,
    Durations,
    Forward,
    ReceiveActivation,
    Receives,
)

LAYERS, WIDTH, CLASSES, BATCH, MICRO_BATCHES, LR = 8, 64, 10, 64, 8, 0.1
B = d2lmulti.get_backend("numpy")
MODEL = make_mlp("player", (WIDTH, *[WIDTH] * (LAYERS - 1), CLASSES))
START = MODEL.initial(np.random.default_rng(0))


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


def observed(
    train: Callable[..., Sequence[Any]],
    placed: Any,
    devices: Sequence[Any],
    listener: Listener,
    *others: Any,
    **options: Any,
) -> tuple[Any, float]:
    """Take a step with a ledger and listeners; return the ledger and the loss."""
    X, y = batch()
    options["optimizer"] = listener.optimizer()
    listener.own(placed)
    with d2lmulti.ledger() as ledger, observe(listener, *others):
        losses = train(X, y, placed, devices, LR, **options)
    return ledger, sum(float(B.numpy(loss)) for loss in losses)


def run_data(k: int, algorithm: str) -> Run:
    """Data parallelism: all gradients are ready before the first one is sent."""
    listener, play = Listener(), Play(k)
    layers = tuple(map(listener.listened, MODEL.layers))

    def through(B: Any, params: Sequence[Any], X: Any) -> Any:
        return run_layers(B, layers, params, X)

    model = MODEL._replace(forward=through, layers=layers)
    devices = d2lmulti.devices(k, "numpy")
    replicas = [d2lmulti.get_params([B.array(p) for p in START], d) for d in devices]
    reducer = partial(reduce_in_buckets, bucket_bytes=2**20)  # one bucket
    options = {"model": model, "reducer": reducer, "algorithm": algorithm}
    ledger, loss = observed(
        d2lmulti.train_batch, replicas, devices, listener, **options
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


def go_back(
    play: Play,
    kept: dict[tuple[int, int], int],
    first: int,
    last: int,
    units: float,
    micro: int | None = None,
) -> None:
    """Run layers backward on the devices that store them, and free what is stored."""
    for n in range(first, last - 1, -1):
        for d in sorted(d for d, layer in kept if layer == n):
            play.compute(d, "B", n if micro is None else micro, units)
            play.hold(d, 0, -kept.pop((d, n)))


def run_tensor(k: int) -> Run:
    """Tensor parallelism: sums of activations, and of their gradients, on a ring."""
    listener, play = Listener(), Play(k)
    devices = d2lmulti.devices(k, "numpy")
    split = d2lmulti.get_split(MODEL)
    split = split._replace(layers=tuple(map(listener.listened_shard, split.layers)))
    shards = d2lmulti.split_params([B.array(p) for p in START], devices, split)
    options = {"model": split, "algorithm": "ring"}
    ledger, loss = observed(d2lmulti.train_layers, shards, devices, listener, **options)
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
    devices = d2lmulti.devices(k, "numpy")
    stages = cut_stages(MODEL, k)
    _, ranks = make_lists(schedule, k, MICRO_BATCHES, local_group(k))
    params = place_params([B.array(p) for p in START], stages, devices, ranks=ranks)
    size = BATCH // MICRO_BATCHES * WIDTH * 8
    trace = PipelineTrace(
        Durations(
            forward=LAYERS / k,
            backward=2 * LAYERS / k,
            transfer=LATENCY + size / BYTES_PER_UNIT,
        )
    )
    options = {"stages": stages, "schedule": schedule, "micro_batches": MICRO_BATCHES}
    ledger, loss = observed(train_stages, params, devices, listener, trace, **options)
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
    devices = d2lmulti.devices(k, "numpy")
    model = MODEL._replace(layers=tuple(map(listener.listened, MODEL.layers)))
    sharded = d2lmulti.shard_params([B.array(p) for p in START], devices, model, zero=3)
    ledger, loss = observed(d2lmulti.train_shards, sharded, devices, listener)
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


def run_mesh(k: int) -> Run:
    """Replicas of pipelines of split layers, each pipeline with two stages."""
    mesh = Mesh(data=k // 4, pipeline=2, tensor=2)
    micro_batches, per_stage = MICRO_BATCHES // (k // 4), LAYERS // 2
    listener, play = Listener(), Play(k, "micro-batch")
    devices = d2lmulti.devices(k, "numpy")
    split = d2lmulti.get_split(MODEL)
    split = split._replace(layers=tuple(map(listener.listened_shard, split.layers)))
    placed = place_on_mesh([B.array(p) for p in START], devices, mesh, split)
    options = {"micro_batches": micro_batches, "algorithm": "ring"}
    ledger, loss = observed(train_on_mesh, placed, devices, listener, **options)
    kept: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)  # by micro-batch
    made: dict[tuple[int, bool, int], float] = {}  # when: rank, forward, micro-batch
    units = 8 / (k // 2) / micro_batches
    replica, ranks, present, left = -1, [], None, 0

    def finish() -> None:
        """Run the rest of a stage backward, and note when its results are there."""
        if isinstance(present, Backward):
            lowest = per_stage * present.stage + 1
            go_back(play, kept[present.micro], left, lowest, 2 * units, present.micro)
        if isinstance(present, Forward | Backward):
            forward = isinstance(present, Forward)
            made.update({(d, forward, present.micro): play.now[d] for d in ranks})

    for d, own in enumerate(placed):
        play.hold(d, stored_bytes(own))
    for kind, *rest in listener.log:
        if kind == "pipeline":
            finish()
            replica, present = replica + 1, None
        elif kind == "instruction":
            finish()
            place, present = rest
            ranks, left = mesh.ranks[replica, place].tolist(), per_stage * (place + 1)
        elif kind == "layer":
            d, n, inside, _ = rest
            first = n % per_stage == 1
            kept[present.micro][d, n] = inside if first else 0
            play.hold(d, 0, inside if first else 0)
            play.compute(d, "F", present.micro, units)
        elif kind == "out":
            d, n, size = rest
            kept[present.micro][d, n] += size
            play.hold(d, 0, size)
        elif kind == "round":
            play.waiting.append((kind, *rest))
            if isinstance(present, Receives):
                forward = isinstance(present, ReceiveActivation)
                (((source, _, _),), _) = rest
                what = "activations" if forward else "gradients"
                play.pass_on(what, made[source, forward, present.micro])
        elif kind == "mark" and play.waiting:
            layer, direction = rest[0].rsplit(" ", 1)
            n, what = number_of(layer), "activations"
            if direction == "backward":
                micro = present.micro
                go_back(play, kept[micro], left, n, 2 * units, micro)
                left, what = n - 1, "gradients"
            play.send(f"sum of {what}, layer {n}")
        elif kind == "update":
            finish()
            present = None
            send_by_group(play, "sum of gradients")
            play.compute(rest[0], "U", 0, 1 / 4)
    return Run(listener, play, ledger, loss, gather_from_mesh(placed))


def send_by_group(play: Play, what: str) -> None:
    """Exchange the waiting rounds of each group of ranks, and count them per group."""
    groups = defaultdict(list)
    for event in play.waiting:
        groups[frozenset(rank for row in event[1] for rank in row[:2])].append(event)
    for events in groups.values():
        play.waiting = events
        play.send(what)
