"""Sharding side by side: ZeRO beside data parallelism, and beside `fully_shard`.

Two processes with a thread each, on a core of its own, train the same perceptron from
the same weights; the candidates take turns in one run. Chapter: *sharding*.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from d2lmulti.backends import get_backend
from d2lmulti.comm.devices import Device
from d2lmulti.models.networks import make_mlp
from d2lmulti.parallel.buckets import reduce_in_buckets
from d2lmulti.parallel.data import get_params, train_batch
from d2lmulti.parallel.flat_parameters import shard_params
from d2lmulti.parallel.sharded import train_shards
from d2lmulti.processes.process_group import started

from .engines import ENGINES_OF, Candidate, draw, on_two_cores, pin, seconds_in_turn
from .timing import Timing, compare_times

BATCH, WIDTHS = 512, (1024, 1024, 1024, 1024, 10)  # 13 MB of float32
_DEVICE = Device("cpu")
_PEERS = "benchmarks.pytorch_peers"


def bench_sharded(backend: str | None = None, repeats: int = 7) -> dict[str, Timing]:
    """Time a step of ZeRO 1, 2 and 3 across two processes of this machine.

    All run on the CPU, also where there are GPUs. Ratios are to data parallelism, with
    its gradients in buckets; with PyTorch, second rows give those to `fully_shard`, as
    it is and with activation checkpointing, which computes what ours does: a layer's
    forward pass twice. Raises `BackendNotInstalled`, `ProcessFailed`.
    """
    name = get_backend(backend).name
    return on_two_cores(measure, ENGINES_OF[name][0], name, repeats)


def measure(repeats: int) -> dict[str, Timing]:
    """Time all candidates; called in each process."""
    group, B = started(), get_backend()
    if group is None:
        return {}
    pin(group.local_ranks[0])
    model = make_mlp("wide", WIDTHS)
    start, _, part = draw(B, group, model, WIDTHS[:1], BATCH)
    params = get_params(start, _DEVICE)
    data_parallel = partial(
        train_batch, *part, [params], [_DEVICE], 1e-4, model=model, group=group,
        n=BATCH, algorithm="native", reducer=reduce_in_buckets,
    )  # fmt: skip
    steps: dict[str, Callable[[], object]] = {"data parallel": data_parallel}
    for zero in (1, 2, 3):
        sharded = shard_params(start, [_DEVICE], model, zero, group)
        steps[f"ZeRO {zero}"] = partial(
            train_shards, *part, sharded, [_DEVICE], 1e-4, group=group, n=BATCH
        )
    peers = []
    if B.name == "torch":
        theirs = import_module(_PEERS).sharded_step
        for name, again in (("fully_shard", False), ("fully_shard, recomputes", True)):
            steps[name] = theirs(start, *part, 1e-4, BATCH, again)
            peers.append(name)
    candidates: dict[str, Candidate] = {name: (s, False) for name, s in steps.items()}
    seconds = seconds_in_turn(candidates, group, repeats)
    base = seconds["data parallel"]
    timings = {name: compare_times(times, base) for name, times in seconds.items()}
    for peer in peers:
        timings[f"ZeRO 3, to {peer}"] = compare_times(seconds["ZeRO 3"], seconds[peer])
    return timings
