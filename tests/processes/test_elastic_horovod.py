"""Horovod's elastic form: a machine is lost and comes back in one and the same run."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.launchers import Launchers
from processes.reading import READ
from processes.test_elastic import ARGUMENTS, on_one_device

pytestmark = pytest.mark.cluster

HOROVODRUN = (
    "{folder}/horovodrun --gloo --network-interfaces cable0 -np 2 --min-np 1 "
    "--max-np 2 --blacklist-cooldown-range 1 2 --host-discovery-script ../hosts "
    "--gloo-timeout-seconds 250 {python} {script}"  # for the start of the other
)
AN_EPOCH = 24 * 6090 * 8  # bytes of gradients


@pytest.mark.torch
@pytest.mark.usefixtures("horovod")
def test_it_goes_on_alone_and_takes_the_machine_back(
    load: Callable, named: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    load("torch")
    if not named[0].prefix:
        pytest.skip("needs the right to make network namespaces, and to name them")
    hosts = tmp_path / "hosts"
    hosts.write_text("\n".join(["#!/bin/sh", *(f"echo {m.address}:1" for m in named)]))
    hosts.chmod(stat.S_IRWXU)
    path, second = tmp_path / "run", named[1]
    arguments = [*ARGUMENTS, str(path), "--epochs", "1000"]
    name = "pytorch_elastic"
    with Launchers(name, named, tmp_path, arguments, HOROVODRUN) as run:
        run.wait_until(run.epochs)
        run.kill(1)
        both = max(run.epochs())
        run.wait_until(lambda: max(run.epochs()) > both + 1)
        before = second.received()
        run.wait_until(lambda: second.received() > before + AN_EPOCH)
    epochs = epochs_of(path)
    assert epochs > both
    weights = READ[name](path), on_one_device(epochs, tmp_path / "alone", monkeypatch)
    for p, q in zip(*weights, strict=True):
        assert np.abs(p - q).max() <= 1e-12 * np.abs(q).max()


def epochs_of(checkpoint: Path) -> int:
    import torch

    epochs: int = torch.load(checkpoint, weights_only=True)["epochs"]
    return epochs
