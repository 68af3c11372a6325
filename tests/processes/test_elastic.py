"""Elastic: one of two machines is gone, the other goes on alone, then both again.

`torchrun --nnodes 1:2` starts a script of `examples/` that knows nothing of it; its
checkpoint holds a part a rank, written by two, read by one, and by two once more.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.launchers import ELASTIC, EXAMPLES, Launchers
from processes.reading import READ
from processes.test_examples import finished

pytestmark = pytest.mark.cluster

ARGUMENTS = ["--dtype", "float64", "--batch-size", "64", "--checkpoint"]


def writers(checkpoint: Path) -> dict[int, set[str]]:
    """The ranks that wrote a part of it, for each epoch."""
    return {
        int(folder.suffix[1:]): {file.name[2] for file in folder.glob("__*.distcp")}
        for folder in checkpoint.glob("epoch.*")
    }


@pytest.mark.torch
def test_the_machine_that_is_left_goes_on_alone_and_then_both(
    load: Callable, machines: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    load("torch")
    path, alone = tmp_path / "run", tmp_path / "alone"
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

    weights = READ["pytorch_fsdp"](path), on_one_device(epochs, alone, monkeypatch)
    for p, q in zip(*weights, strict=True):
        assert np.abs(p - q).max() <= 1e-12 * np.abs(q).max()
    if machines[0].prefix:  # the gradients of two epochs crossed the cable
        for machine, count in zip(machines, before, strict=True):
            assert machine.received() > count + 24 * sum(p.nbytes for p in weights[1])


def on_one_device(epochs: int, path: Path, monkeypatch: Any) -> list[np.ndarray]:
    """The weights after so many epochs of the script for one device."""
    script = EXAMPLES / "pytorch_single.py"
    arguments = [*ARGUMENTS, str(path), "--epochs", str(epochs)]
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    runpy.run_path(str(script))
    weights = READ["pytorch_single"](path)
    assert len(weights) == 6
    return weights
