"""Two machines: they train as one device; one is lost, killed, or comes back."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.compare import assert_near
from processes.launchers import ELASTIC, Launchers
from processes.reading import READ
from processes.test_examples import finished, on_one_device

import d2lmulti
from d2lmulti.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.cluster

ARGUMENTS = ["--dtype", "float64", "--batch-size", "64", "--checkpoint"]
AN_EPOCH = 24 * 6090 * 8  # bytes of gradients


def assert_equal_to_one_device(name: str, path: Path, epochs: int) -> int:
    """Compare a checkpoint with that of one device; return the bytes of the weights."""
    alone = path.with_name("alone")
    on_one_device("pytorch", [*ARGUMENTS, str(alone), "--epochs", str(epochs)])
    weights = READ[name](path), READ["pytorch_single"](alone)
    assert len(weights[1]) == 6
    for p, q in zip(*weights, strict=True):
        assert np.abs(p - q).max() <= 1e-12 * np.abs(q).max()
    return sum(p.nbytes for p in weights[1])


# -- the command line under two launchers ----------------------------------------------

TRAIN = "-m d2lmulti train --model mlp --dtype float64 --epochs 1"
LAUNCHERS = {
    "torch": (
        "{python} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank "
        "{rank} --master-addr {addresses[0]} --master-port {port} " + TRAIN
    ),
    "paddle": (
        "{python} -m paddle.distributed.launch --nnodes 2 --nproc_per_node 1 --rank "
        "{rank} --master {addresses[0]}:{port} --host {addresses[1]} --log_dir {port} "
        "{python} " + TRAIN
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=getattr(pytest.mark, n)) for n in LAUNCHERS]
)
def test_two_launchers_train_as_one_device(
    name: str, load: Callable, machines: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    B, file = load(name), tmp_path / "run.npz"
    monkeypatch.setenv("D2LMULTI_QUIET", "1")
    before = [machine.received() for machine in machines]
    options = ["--backend", name, "--checkpoint", str(file)]
    run = finished("", machines, tmp_path, options, LAUNCHERS[name])
    alone = d2lmulti.train(1, model="mlp", dtype="float64", epochs=1, backend=name)
    result = f"accuracy {alone.accuracies[0]:.4f}, loss {alone.losses[0]:.4f}"
    said = [run.said(rank) for rank in (0, 1)]
    assert [result in text for text in said] == [True, False], said
    saved = load_checkpoint(file).params
    assert_near(saved, map(B.numpy, alone.device_params[0]))
    if machines[0].prefix:  # the gradients were sent through the cable, 12 times
        sent = 12 * sum(p.nbytes for p in saved)
        for machine, count in zip(machines, before, strict=True):
            assert machine.received() - count > 0.9 * sent


# -- the scripts of examples/, when a machine or a worker is killed --------------------


def writers(checkpoint: Path) -> dict[int, set[str]]:
    """Return the ranks that wrote a part of a checkpoint, for each epoch."""
    return {
        int(folder.suffix[1:]): {file.name[2] for file in folder.glob("__*.distcp")}
        for folder in checkpoint.glob("epoch.*")
    }


@pytest.mark.torch
def test_the_machine_that_is_left_continues_alone_and_then_both(
    load: Callable, machines: list[Any], tmp_path: Path
) -> None:
    """Ranks write a checkpoint's parts: two ranks, then one, and then two again."""
    load("torch")
    path = tmp_path / "run"
    arguments = [*ARGUMENTS, str(path), "--epochs", "1000"]

    with Launchers("pytorch_fsdp", machines, tmp_path, arguments, ELASTIC) as run:
        run.wait_until(lambda: {"0", "1"} in writers(path).values())
        run.kill(1)
        both = max(writers(path))
        run.wait_until(
            lambda: any(w == {"0"} for e, w in writers(path).items() if e > both)
        )
    epochs = max(writers(path)) + 2
    before = [machine.received() for machine in machines]
    finished("pytorch_fsdp", machines, tmp_path, [*arguments[:-1], str(epochs)])
    assert writers(path)[epochs] == {"0", "1"}
    sent = 24 * assert_equal_to_one_device("pytorch_fsdp", path, epochs)
    if machines[0].prefix:  # the gradients of two epochs crossed the cable
        for machine, count in zip(machines, before, strict=True):
            assert machine.received() > count + sent


def epochs_of(checkpoint: Path) -> int:
    import torch

    epochs: int = torch.load(checkpoint, weights_only=True)["epochs"]
    return epochs


HOROVODRUN = (
    "{folder}/horovodrun --gloo --network-interfaces cable0 -np 2 --min-np 1 "
    "--max-np 2 --blacklist-cooldown-range 1 2 --host-discovery-script ../hosts "
    "--gloo-timeout-seconds 250 {python} {script}"  # for the start of the other
)


@pytest.mark.torch
@pytest.mark.usefixtures("horovod")
def test_elastic_horovod_continues_alone_and_takes_the_machine_back(
    load: Callable, named: list[Any], tmp_path: Path
) -> None:
    load("torch")
    if not named[0].prefix:
        pytest.skip("needs the right to make network namespaces, and to name them")
    hosts = tmp_path / "hosts"
    hosts.write_text("\n".join(["#!/bin/sh", *(f"echo {m.address}:1" for m in named)]))
    hosts.chmod(stat.S_IRWXU)
    name, path, second = "pytorch_elastic", tmp_path / "run", named[1]
    arguments = [*ARGUMENTS, str(path), "--epochs", "1000"]
    with Launchers(name, named, tmp_path, arguments, HOROVODRUN) as run:
        run.wait_until(run.epochs)
        run.kill(1)
        both = max(run.epochs())
        run.wait_until(lambda: max(run.epochs()) > both + 1)
        before = second.received()
        run.wait_until(lambda: second.received() > before + AN_EPOCH)
    assert epochs_of(path) > both
    assert_equal_to_one_device(name, path, epochs_of(path))


KILLS = 5
PAGE = Path(__file__).resolve().parents[2] / "chapters" / "scripts.md"
# What stands on the page, and what stands for it here: one worker per machine, and
# machines whose names lead to no address.
HERE = {
    "torchrun": "{python} -m torch.distributed.run",
    "--nproc-per-node 4": "--nproc-per-node 1 --local-addr {addresses[1]}",
    "--max-restarts 3": f"--max-restarts {KILLS}",
    "10.0.0.1:29500": "{addresses[0]}:{port} --rdzv-conf is_host={is_first}",
    "pytorch_ddp.py": "{script}",
}


@pytest.mark.torch
@pytest.mark.timeout(900)  # a minute on two quiet cores
def test_two_launchers_start_both_workers_again_after_each_of_five_kills(
    load: Callable, machines: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """The command is that of the page, with its variable.

    Without it, workers may read the addresses of the start before from the launchers'
    common store: three of ten runs in which a worker was killed once did not recover.
    """
    load("torch")
    found = re.search(
        r"^export (\w+)=1\n(torchrun --nnodes 2 .*?pytorch_ddp\.py)",
        PAGE.read_text("utf-8"), re.M | re.S,
    )  # fmt: skip
    assert found
    variable, launcher = found.groups()
    for theirs, ours in HERE.items():
        assert launcher.count(theirs) == 1
        launcher = launcher.replace(theirs, ours)
    monkeypatch.setenv(variable, "1")
    path, rng = tmp_path / "run", np.random.default_rng(0)
    arguments = [*ARGUMENTS, str(path), "--epochs", "10000"]
    launcher = launcher.replace("\\\n", "")
    with Launchers("pytorch_ddp", machines, tmp_path, arguments, launcher) as run:
        run.wait_until(path.exists)
        for kill in range(KILLS):
            time.sleep(rng.uniform(0, 0.3))
            run.kill(kill % 2, "worker")
            before = epochs_of(path)
            # Rank 0 may have been about to save one more; two more are a new start.
            run.wait_until(lambda before=before: epochs_of(path) > before + 1)
            assert all(launcher.poll() is None for launcher in run.running)
    assert_equal_to_one_device("pytorch_ddp", path, epochs_of(path))
