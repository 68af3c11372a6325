"""Horovod under MXNet and PyTorch: its collectives, and the same training as alone."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.compare import assert_near
from processes.asked import reachable
from processes.asked_mesh import invalid
from processes.staying import Staying, started_once

import d2lmulti
from d2lmulti.errors import PeerError
from d2lmulti.models.networks import make_mlp
from d2lmulti.optimizers import SGD
from d2lmulti.parallel.buckets import reduce_in_buckets
from d2lmulti.plans.rounds import even_bounds
from d2lmulti.processes.process_group import started
from d2lmulti.processes.spawn import environment
from d2lmulti.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.usefixtures("horovod")
SMALL = make_mlp("small", (20, 8, 3))
STEPS, BATCH = 10, 13  # an odd batch: the ranks' shards differ in size


def tensor(rank: int, dtype: str, shape: tuple[int, ...] = (7,)) -> np.ndarray:
    values = np.random.default_rng(rank).integers(-9, 9, shape)
    return (values / (4 if dtype.startswith("float") else 1)).astype(dtype)


def task() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(STEPS * BATCH, 20)), rng.integers(0, 3, STEPS * BATCH)
    return X, y, SMALL.initial(rng)


def run(k: int, **options: Any) -> list[np.ndarray]:
    """Take ten steps on k devices; return every replica of this process, in a row."""
    B, (X, y, start) = d2lmulti.get_backend(), task()
    devices, momentum = d2lmulti.devices(k), SGD(0.9)
    params = [B.array(p) for p in start]
    replicas = [d2lmulti.get_params(params, device) for device in devices]
    states = [momentum.init(replica) for replica in replicas]
    for i in range(0, STEPS * BATCH, BATCH):
        batch = B.array(X[i : i + BATCH]), B.array(y[i : i + BATCH])
        d2lmulti.train_batch(*batch, replicas, devices, 0.05, model=SMALL,
                             optimizer=momentum, states=states, **options)  # fmt: skip
    return [B.numpy(p) for replica in replicas for p in replica]


def collectives() -> dict[str, Any]:
    """Run all that Horovod has; called in each process."""
    B, group = d2lmulti.get_backend(), started()
    (rank,), found = group.local_ranks, {}
    found["reachable"] = [*reachable()]
    found["texts"] = group.engine.allgather_text(f"rank {rank} ä")
    for dtype in ("float32", "float64", "int64"):
        for op in ("sum", "max"):
            x = B.array(tensor(rank, dtype))
            d2lmulti.allreduce([x], "native", op=op)
            found[f"{op} {dtype}"] = B.numpy(x)
    number = B.array(tensor(rank, "float64", ()))
    d2lmulti.allreduce([number], "native", op="mean")
    found["mean"] = B.numpy(number)
    x = B.array(tensor(rank, "float64", (3, 2)))
    B.attach_grad(x)
    d2lmulti.broadcast([x], root=1)
    found["broadcast"] = B.numpy(x)
    for op in ("sum", "mean", "max"):
        (part,) = d2lmulti.reduce_scatter([B.array(tensor(rank, "float64"))], op=op)
        found[f"scatter {op}"] = B.numpy(part)
    (rows,) = d2lmulti.allgather([B.array(tensor(rank, "float32", (rank, 2)))])
    found["rows"] = B.numpy(rows)
    d2lmulti.allreduce([B.zeros((0,), "float32")], "native")
    found["refused"] = [
        invalid(lambda: d2lmulti.allreduce([B.zeros((4,), "float32")], "ring")),
        invalid(lambda: d2lmulti.alltoall([B.zeros((4,), "float32")])),
        invalid(lambda: group.engine.start("alltoall", [B.zeros((4,), "float32")])),
    ]
    found["one call"] = run(group.size, algorithm="native")
    found["buckets"] = run(
        group.size,
        algorithm="native",
        reducer=partial(reduce_in_buckets, bucket_bytes=300),
    )
    try:  # the last: after an error the group is of no use
        group.engine.start("allreduce", [B.zeros((2 + rank,), "float32")]).wait()
    except PeerError as error:
        found["shapes"] = str(error)
    return found


@pytest.mark.parametrize(
    ("name", "n"),
    [
        pytest.param(name, n, marks=started_once("horovod", name, n))
        for name, n in (("torch", 3), ("mxnet", 2))
    ],
)
def test_its_collectives_and_training_over_it(
    name: str, n: int, load: Any, staying: Staying, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(name)
    found = staying("horovod", name, n)(collectives)
    staying.end()
    monkeypatch.setenv("D2LMULTI_BACKEND", name)
    bounds, alone = even_bounds(7, n), run(1)
    for rank, mine in enumerate(found):
        assert mine["reachable"] == []
        assert mine["texts"] == [f"rank {r} ä" for r in range(n)]
        for dtype in ("float32", "float64", "int64"):
            every = np.array([tensor(r, dtype) for r in range(n)])
            assert (mine[f"sum {dtype}"] == every.sum(0)).all()
            assert (mine[f"max {dtype}"] == every.max(0)).all()
            assert mine[f"sum {dtype}"].dtype == dtype
        first, last = bounds[rank]
        every = np.array([tensor(r, "float64") for r in range(n)])
        for op in ("sum", "mean", "max"):
            want = getattr(every, op)(0)[first:last]
            assert np.allclose(mine[f"scatter {op}"], want, rtol=1e-15)
        numbers = [tensor(r, "float64", ()) for r in range(n)]
        assert np.allclose(mine["mean"], np.mean(numbers), rtol=1e-15)
        assert (mine["broadcast"] == tensor(1, "float64", (3, 2))).all()
        rows = [tensor(r, "float32", (r, 2)) for r in range(n)]
        assert (mine["rows"] == np.concatenate(rows)).all()
        assert all(mine["refused"])
        assert "shapes" in mine["shapes"]
        for way in ("one call", "buckets"):
            for p, q, r in zip(mine[way], found[0][way], alone, strict=True):
                assert (p == q).all()
                assert np.abs(p - r).max() <= 1e-12 * np.abs(r).max()


@pytest.mark.torch  # with MXNet it starts a program in the chapter many_machines
def test_horovodrun_starts_train_unchanged(load: Any, tmp_path: Path) -> None:
    """The weights of two processes are those of one device; rank 0 alone prints."""
    B, file = load("torch"), tmp_path / "run.npz"
    command = f"{Path(sys.executable).parent}/horovodrun --gloo -np 2 {sys.executable} "
    command += "-m d2lmulti train --backend torch --model mlp --dtype float64 "
    command += f"--epochs 1 --checkpoint {file}"
    done = subprocess.run(
        command.split(), env=environment() | {"D2LMULTI_QUIET": "1"},
        capture_output=True, text=True, timeout=290,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "accuracy" in line]
    alone = d2lmulti.train(1, model="mlp", dtype="float64", epochs=1, backend="torch")
    assert len(said) == 1
    assert f"accuracy {alone.accuracies[0]:.4f}, loss {alone.losses[0]:.4f}" in said[0]
    assert_near(load_checkpoint(file).params, map(B.numpy, alone.device_params[0]))
