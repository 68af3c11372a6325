"""The `sbatch` files of `examples/` start their launchers on every machine of a job.

No cluster is here: an `srun` of our own starts the tasks of both machines on this one,
with the variables that Slurm would set, and a `scontrol` names the machines.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from d2lmulti.backends.protocol import Backend
from d2lmulti.launch.processes import environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SRUN = """#!/bin/bash
[[ $1 == --kill-on-bad-exit=1 ]] && shift
for node in 0 1; do SLURM_NODEID=$node "$@" & tasks+=($!); done
for task in "${tasks[@]}"; do wait "$task" || exit; done
"""
SCONTROL = """#!/bin/bash
[[ "$*" == "show hostnames node[0-1]" ]] && printf '127.0.0.1\\n127.0.0.2\\n'
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("pytorch_ddp", marks=pytest.mark.torch),
        pytest.param("paddle_parallel", marks=pytest.mark.paddle),
    ],
)
def test_a_job_of_two_machines_trains(
    name: str, load: Callable[[str], Backend], tmp_path: Path
) -> None:
    load({"pytorch_ddp": "torch", "paddle_parallel": "paddle"}[name])
    for command, text in [("srun", SRUN), ("scontrol", SCONTROL)]:
        (tmp_path / command).write_text(text)
        (tmp_path / command).chmod(stat.S_IRWXU)
    for kind in ("py", "sbatch"):
        shutil.copy(EXAMPLES / f"{name}.{kind}", tmp_path)
    job = (tmp_path / f"{name}.sbatch").read_text()
    assert re.search(r"^#SBATCH --nodes=2$", job, re.M)
    assert re.search(r"^#SBATCH --ntasks-per-node=1 ", job, re.M)
    slurm = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "1",
        "PATH": os.pathsep.join(
            [str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
    }
    script = tmp_path / f"{name}.sbatch"
    script.write_text(job.replace("--epochs 10", "--epochs 1"))
    done = subprocess.run(
        ["bash", script], cwd=tmp_path, env=environment() | slurm,
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    logs = sorted(tmp_path.glob("log/*/workerlog.0"))  # Paddle's, of each machine
    text = "".join(log.read_text() for log in logs) or done.stdout
    assert re.findall(r"epoch (\d+): loss", text) == ["1"]  # rank 0 of one group
    assert list(tmp_path.glob("run.*"))
