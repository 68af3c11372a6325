"""A worker is killed ten times; two launchers of `torchrun` start both again each time.

The command is that of the chapter *scripts*. Without its variable the workers of one
start may read the addresses of the start before from the launchers' common store: three
of ten runs in which a worker was killed once did not recover.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.launchers import Launchers
from processes.reading import READ
from processes.test_elastic import ARGUMENTS, on_one_device
from processes.test_elastic_horovod import epochs_of

pytestmark = pytest.mark.cluster

KILLS = 10
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


def command_of_the_page() -> tuple[str, str]:
    """Return the variable that the page sets, and the launcher that it starts."""
    found = re.search(
        r"^export (\w+)=1\n(torchrun --nnodes 2 .*?pytorch_ddp\.py)",
        PAGE.read_text("utf-8"), re.M | re.S,
    )  # fmt: skip
    assert found
    variable, launcher = found.groups()
    for theirs, ours in HERE.items():
        assert launcher.count(theirs) == 1
        launcher = launcher.replace(theirs, ours)
    return variable, launcher.replace("\\\n", "")


@pytest.mark.torch
@pytest.mark.timeout(900)  # a minute on two quiet cores
def test_both_go_on_after_each_of_ten_kills(
    load: Callable, machines: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    load("torch")
    variable, launcher = command_of_the_page()
    monkeypatch.setenv(variable, "1")
    path, rng = tmp_path / "run", np.random.default_rng(0)
    arguments = [*ARGUMENTS, str(path), "--epochs", "10000"]
    with Launchers("pytorch_ddp", machines, tmp_path, arguments, launcher) as run:
        run.wait_until(path.exists)
        for kill in range(KILLS):
            time.sleep(rng.uniform(0, 0.3))
            run.kill(kill % 2, "worker")
            before = epochs_of(path)
            # Rank 0 may have been about to save one more; two more are a new start.
            run.wait_until(lambda before=before: epochs_of(path) > before + 1)
            assert all(launcher.poll() is None for launcher in run.running)
    epochs = epochs_of(path)
    weights = (
        READ["pytorch_ddp"](path),
        on_one_device(epochs, tmp_path / "alone", monkeypatch),
    )
    for p, q in zip(*weights, strict=True):
        assert np.abs(p - q).max() <= 1e-12 * np.abs(q).max()
