"""What each process of a group is asked for, for `test_engines`.

Apart from the tests, because every new process reads this file and should be quick.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from processes.asked_mesh import invalid, on_a_mesh
from processes.asked_tokens import attention_over_ranks

import d2lmulti
from d2lmulti.backends import DTYPES, get_backend
from d2lmulti.backends.protocol import Backend
from d2lmulti.comm.collectives import receive, send
from d2lmulti.comm.group import Group, local_group
from d2lmulti.models.networks import make_mlp
from d2lmulti.models.transformer import make_transformer
from d2lmulti.optimizers import Adam, AdamW
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.processes.process_group import started

UNEVEN = make_mlp("uneven", (784, 37, 2, 10))  # layers of 29,045, 76 and 30 numbers

MIXTURE = make_transformer("mixture", 9, 5, 8, heads=2, blocks=1, experts=2)
IDS = np.random.default_rng(1).integers(0, 9, (42, 6))
TEXT = d2lmulti.Dataset(
    "ids", IDS[:31, :-1], IDS[:31, 1:], IDS[31:, :-1], IDS[31:, 1:], tuple("012345678")
)

# Name of the case -> arguments of `train`; the last batch has 7 examples.
CASES: dict[str, dict[str, Any]] = {
    "data": {"model": "lenet"},
    "data, statistics": {"model": "lenet_bn", "algorithm": "auto"},
    "data, buckets": {"model": "mlp", "algorithm": "ring", "bucket_bytes": 50_000},
    "data, native": {"model": "mlp", "algorithm": "native", "bucket_bytes": 50_000},
    "tensor": {"model": "mlp", "strategy": "tensor", "algorithm": "ring"},
    "pipeline": {"model": "deep_mlp", "strategy": "pipeline", "micro_batches": 3},
    "pipeline, interleaved": {
        "model": "deep_mlp",
        "strategy": "pipeline",
        "schedule": "interleaved",
        "micro_batches": 4,
        "stages": 2,  # a rank
    },
    "pipeline, V-shaped": {
        "model": "deep_mlp",
        "strategy": "pipeline",
        "schedule": "zb_v",
        "micro_batches": 3,
        "optimizer": "adam",
    },
    "mesh": {
        "strategy": "mesh", "model": "mlp", "micro_batches": 2,
        "mesh": {"data": 2, "tensor": 2}, "optimizer": Adam(eps=1e-3),
    },
    "mesh, ZeRO 1": {
        "strategy": "mesh", "model": "deep_mlp", "micro_batches": 3, "zero": 1,
        "mesh": {"data": 2, "pipeline": 2}, "optimizer": AdamW(eps=1e-3),
    },
    "mesh, tokens and experts": {
        "strategy": "mesh", "model": MIXTURE, "micro_batches": 2, "dataset": TEXT,
        "mesh": {"expert": 2, "sequence": 2}, "optimizer": Adam(eps=1e-3),
    },
    "sharded, ZeRO 1": {
        "strategy": "sharded", "model": UNEVEN, "zero": 1, "accumulate": 2,
    },
    "sharded, ZeRO 2": {
        "strategy": "sharded", "model": UNEVEN, "zero": 2, "optimizer": AdamW(eps=1e-3),
        "accumulate": 2,
    },
    "sharded, ZeRO 3": {
        "strategy": "sharded", "model": UNEVEN, "zero": 3, "optimizer": Adam(eps=1e-3),
    },
}  # fmt: skip


A_FEW = (  # one of each way to split
    "data, buckets", "tensor", "pipeline, interleaved", "mesh, ZeRO 1",
    "sharded, ZeRO 3",
)  # fmt: skip


def data() -> d2lmulti.Dataset:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(42, 1, 28, 28)), rng.integers(0, 10, 42)
    digits = tuple("0123456789")
    return d2lmulti.Dataset("noise", X[:35], y[:35], X[35:], y[35:], digits)


def train_all(n: int, backend: str, names: list[str]) -> dict[str, tuple]:
    """Train each case on n devices for 6 steps; give history and all weights."""
    B, found = get_backend(backend), {}
    for name in names:
        options = dict(CASES[name])
        if "stages" in options:
            options["stages"] *= n
        if "mesh" in options:  # of n devices
            (first, _), (second, size) = options["mesh"].items()
            options["mesh"] = {first: -(-n // size), second: min(n, size)}
        history = d2lmulti.train(
            n, 12, 0.05, epochs=2, dtype="float64", backend=backend,
            **{"dataset": data(), **options},
        )  # fmt: skip
        weights = [[B.numpy(p) for p in params] for params in history.device_params]
        seconds = [epoch.seconds for epoch in history.epochs]
        found[name] = (
            (history.losses, history.accuracies, history.bytes_moved, history.devices),
            weights,
            seconds,
        )
    return found


def collectives(
    B: Backend, group: Group, n: int, messages: bool = True
) -> dict[str, bytes]:
    """Run every collective on this group's ranks; give what each has in the end.

    Without `messages` only what an engine has of its own, whose sums of whole numbers
    are exact in any order.
    """
    ranks, found = group.local_ranks, {}
    algorithms = (*ALLREDUCE, "auto") if messages else ("native",)
    for dtype in ("float32", "int64") if messages else ("int64",):
        for length in (0, 1, 10, 1003):
            rng = np.random.default_rng(length)
            values = (rng.normal(size=(n, length)) * 99).astype(dtype)
            blocks = (rng.normal(size=(n, 2 * n, 3)) * 99).astype(dtype)

            def tensors(rows: Any, ranks: Any = ranks) -> list[Any]:
                return [B.array(rows[rank]) for rank in ranks]

            for algorithm in algorithms:
                for op in ("sum", "max"):
                    xs = tensors(values)
                    d2lmulti.allreduce(xs, algorithm, group, op)
                    found[f"{algorithm} {op} {dtype} {length}"] = xs
            for root in range(n):
                xs, ys = tensors(values), tensors(values)
                d2lmulti.broadcast(xs, root, group)
                d2lmulti.reduce(ys, root, group)
                found[f"broadcast {root} {dtype} {length}"] = xs
                mine = zip(ranks, ys, strict=True)  # the others end as anything
                found[f"reduce {root} {dtype} {length}"] = [
                    y if rank == root else y * 0 for rank, y in mine
                ]
            parts = d2lmulti.reduce_scatter(tensors(values), group)
            found[f"reduce_scatter {dtype} {length}"] = parts
            uneven = [block[: rank + 1] for rank, block in enumerate(blocks)]
            wholes = d2lmulti.allgather(tensors(uneven), group)
            found[f"allgather {dtype} {length}"] = wholes
            if messages:
                xs = tensors(blocks)
                d2lmulti.alltoall(xs, group)
                found[f"alltoall {dtype} {length}"] = xs
    longer = np.random.default_rng(0).integers(0, 99, (n, 1_200_001))  # in segments
    for algorithm in ("star", "ring") if messages else ("native",):
        xs = [B.array(longer[rank]) for rank in ranks]
        d2lmulti.allreduce(xs, algorithm, group)
        found[f"{algorithm} in segments"] = xs
    return {
        f"{name} on rank {rank}": B.numpy(x).tobytes()
        for name, xs in found.items()
        for rank, x in zip(ranks, xs, strict=True)
    }


def every_dtype(B: Backend, group: Group, n: int) -> dict[str, bytes | str]:
    """Run collectives in every dtype that the backend has, and the engine's own."""
    ranks, found = group.local_ranks, {}
    for dtype in DTYPES:
        if invalid(lambda dtype=dtype: B.zeros((1,), dtype)):
            continue

        def tensors(rows: np.ndarray, ranks: Any = ranks, dtype: str = dtype) -> list:
            return [as_dtype(B, rows[rank], dtype) for rank in ranks]

        values = np.random.default_rng(0).normal(size=(n, 2 * n)) * 9
        ops = ["sum", "max"]
        for op in ops:
            for algorithm in ("star", "ring", "native"):
                # An engine has an order of its own, so its sums must be exact.
                xs = tensors(values.round() if algorithm == "native" else values)
                name = f"{algorithm} {op} {dtype}"
                if algorithm == "native" and dtype not in (
                    group.engine.reducible or DTYPES
                ):
                    call = partial(d2lmulti.allreduce, xs, "native", group)
                    assert dtype in invalid(call)
                    continue
                d2lmulti.allreduce(xs, algorithm, group, op)
                found[name] = xs
        parts = d2lmulti.reduce_scatter(tensors(values), group)
        wholes = d2lmulti.allgather(tensors(values), group)
        copies, swapped = tensors(values), tensors(values)
        d2lmulti.broadcast(copies, n - 1, group)
        d2lmulti.alltoall(swapped, group)
        found |= {f"parts {dtype}": parts, f"wholes {dtype}": wholes}
        found |= {f"copies {dtype}": copies, f"swapped {dtype}": swapped}
    return {
        f"{name} on rank {rank}": B.numpy(x).tobytes()
        for name, xs in found.items()
        for rank, x in zip(ranks, xs, strict=True)
    }


def as_dtype(B: Backend, x: np.ndarray, dtype: str) -> Any:
    """Make a tensor; of bfloat16, which NumPy does not have, from its upper half."""
    if dtype != "bfloat16":
        return B.array((np.abs(x) if dtype == "uint8" else x).astype(dtype))
    found = B.zeros(x.shape, dtype)
    B.memory(found).view("uint16")[:] = x.astype("float32").view("uint32") >> 16
    return found


def everything(cases: list[str]) -> dict[str, Any]:
    """Ask everything of the engine, and train; called in each process."""
    group, B = started(), get_backend()
    n, rank, engine = group.size, group.local_ranks[0], group.engine
    differ, count = compared(B, group, n)
    alone, mine = every_dtype(B, local_group(n), n), every_dtype(B, group, n)
    differ += [name for name, bits in mine.items() if alone[name] != bits]
    arrived = round_the_ring(B, group, n)
    native = [B.array(np.float64([rank, 10 - rank, 1])) for _ in range(3)]
    if "allreduce" in engine.native:
        for x, op in zip(native, ("sum", "max", "mean"), strict=True):
            d2lmulti.allreduce([x], "native", op=op)
    return {
        "differ": differ,
        "count": count,
        "dtypes": len(mine),
        "arrived": arrived,
        "native": [B.numpy(x).tolist() for x in native],
        "told": engine.allgather_text(f"rang {rank} é"),
        "trained": train_all(n, B.name, cases),
        "refused": invalid(lambda: d2lmulti.devices(n + 1)),
        "mesh": on_a_mesh(B, group, n),
        "tokens": attention_over_ranks(B, group, n),
        "reachable": list(reachable()),
    }


def reachable() -> Iterator[str]:
    """Give the sockets on which this process listens to other machines."""
    for file in Path("/dev/fd").iterdir():
        if not file.is_socket():
            continue
        try:
            copy = os.dup(int(file.name))
        except OSError:  # a thread of the engine has closed it meanwhile
            continue
        with socket.socket(fileno=copy) as found:
            if found.family == socket.AF_UNIX:
                continue
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            device = found.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
            address = found.getsockname()[0]
            if listens and address not in ("127.0.0.1", "::1") and device[:2] != b"lo":
                yield str(found)


def compared(
    B: Backend, group: Group, n: int, messages: bool = True
) -> tuple[list[str], int]:
    """Tell which collectives differ from those of one process, of how many."""
    alone = collectives(B, local_group(n), n, messages)
    mine = collectives(B, group, n, messages)
    return [name for name, bits in mine.items() if alone[name] != bits], len(mine)


def round_the_ring(B: Backend, group: Group, n: int) -> list[list[float]]:
    """Send as a pipeline does: rank 0 begins, the others first receive."""
    rank = group.local_ranks[0]
    right, left = (rank + 1) % n, (rank - 1) % n
    x = B.array(np.arange(6.0).reshape(2, 3) * rank)
    if rank:
        arrived = receive(B, left, rank, "cpu", group)
    send(x, rank, right, group)
    if not rank:
        arrived = receive(B, left, rank, "cpu", group)
    return B.numpy(arrived).tolist()
