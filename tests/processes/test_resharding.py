"""A distributed checkpoint goes on with another number of ranks than wrote it.

Two ranks of `pytorch_fsdp.py` save, each its part; three ranks go on, then one, and the
weights are those of one device. The ranks are forks of one process
that has imported PyTorch, which takes a second where launchers take ten.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from processes.conftest import NO_GPU
from processes.launchers import EXAMPLES
from processes.reading import READ
from processes.test_two_machines import writers

from d2lmulti.processes.spawn import environment, free_port

pytestmark = pytest.mark.cluster

FORKS = """
import json, os, runpy, sys
import sklearn.datasets, torch.distributed.checkpoint, torch.distributed.fsdp
import torch._dynamo  # as each would for itself

for world, port, *command in json.loads(sys.argv[1]):
    ranks = []
    for rank in range(world):
        ranks.append(os.fork())
        if not ranks[-1]:
            sys.argv = command
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world),
                              LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world),
                              MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            runpy.run_path(command[0])
            os._exit(0)
    for rank in ranks:
        assert os.waitpid(rank, 0)[1] == 0, command
"""
WORLDS = [2, 3, 1]  # an epoch each
SETTINGS = ["--dtype", "float64", "--batch-size", "384"]  # 2 and 3 divide it


@pytest.mark.torch
def test_what_two_ranks_saved_three_read(load: Callable, tmp_path: Path) -> None:
    load("torch")
    runs = [("fsdp", world, 1 + i) for i, world in enumerate(WORLDS)]
    runs.append(("single", 1, len(WORLDS)))
    commands = [
        [world, free_port(), str(EXAMPLES / f"pytorch_{script}.py"), *SETTINGS,
         "--epochs", str(epochs), "--checkpoint", str(tmp_path / script)]
        for script, world, epochs in runs
    ]  # fmt: skip
    forks = [sys.executable, "-c", FORKS, json.dumps(commands)]
    subprocess.run(forks, env=environment() | NO_GPU, check=True, timeout=200)
    # The script keeps the last two epochs.
    assert writers(tmp_path / "fsdp") == {2: {"0", "1", "2"}, 3: {"0"}}
    weights = [READ[f"pytorch_{s}"](tmp_path / s) for s in ("fsdp", "single")]
    assert len(weights[1]) == 6
    for p, q in zip(*weights, strict=True):
        assert np.abs(p - q).max() <= 1e-12 * np.abs(q).max()
