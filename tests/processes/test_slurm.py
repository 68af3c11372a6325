"""The `sbatch` files of `examples/` start their launchers on every machine of a job.

No cluster is here: an `srun` of our own starts the tasks of both machines on this one,
with the variables that Slurm would set, and a `scontrol` names the machines.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes.conftest import NO_GPU, Machine
from processes.launchers import write_ssh

from d2lmulti.processes.spawn import environment

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SRUN = """#!/bin/bash
[[ "$1 $2" == "--cpus-per-task=8 --kill-on-bad-exit=1" ]] || exit 2
shift 2
for node in 0 1; do SLURM_NODEID=$node "$@" & tasks+=($!); done
for task in "${tasks[@]}"; do wait "$task" || exit; done
"""
SCONTROL = """#!/bin/bash
[[ "$*" == "show hostnames node[0-1]" ]] && printf '127.0.0.1\\n127.0.0.2\\n'
"""
# Both addresses are of this machine, so Horovod need not look for a network that all
# of a job's machines have in common.
HOROVODRUN = """#!/bin/bash
exec {folder}/horovodrun --gloo --network-interfaces lo "$@"
"""
# Two of TensorFlow's servers cannot have one port on one machine.
PYTHON = """#!/bin/bash
printf %s "$*" >words.$SLURM_NODEID
printf %s "$TF_CONFIG" >config.$SLURM_NODEID
"""
REPORT = r"epoch (\d+): loss .*, (\d+)/261 right"


def run_job(name: str, folder: Path) -> str:
    """Carry a job out as Slurm would, for one epoch; return what it said."""
    machines = [Machine(f"127.0.0.{i}", [], NO_GPU, int) for i in (1, 2)]
    write_ssh(folder / "ssh", machines)
    bin_ = Path(sys.executable).parent
    horovodrun = HOROVODRUN.format(folder=bin_)
    for command, text in [
        ("srun", SRUN), ("scontrol", SCONTROL), ("horovodrun", horovodrun)
    ]:  # fmt: skip
        (folder / command).write_text(text)
        (folder / command).chmod(stat.S_IRWXU)
    for kind in ("py", "sbatch"):
        shutil.copy(EXAMPLES / f"{name}.{kind}", folder)
    script = folder / f"{name}.sbatch"
    job = script.read_text()
    assert re.search(r"^#SBATCH --nodes=2$", job, re.M)
    assert re.search(r"^#SBATCH --ntasks-per-node=1\b", job, re.M)
    script.write_text(job.replace("--epochs 10", "--epochs 1"))
    slurm = NO_GPU | {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_NNODES": "2",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_GPUS_ON_NODE": "1",
        "PATH": os.pathsep.join([str(folder), str(bin_), os.environ["PATH"]]),
    }
    done = subprocess.run(
        ["bash", script], cwd=folder, env=environment() | slurm,
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    logs = sorted(folder.glob("log/*/workerlog.0"))  # Paddle's, of each machine
    return "".join(log.read_text() for log in logs) or done.stdout


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(name, backend, marks=getattr(pytest.mark, backend))
        for name, backend in [
            ("pytorch_ddp", "torch"),
            ("paddle_parallel", "paddle"),
            ("mxnet_horovod", "mxnet"),
        ]
    ],
)
def test_a_job_of_two_machines_trains(
    name: str, backend: str, load: Callable, need: Callable, tmp_path: Path
) -> None:
    load(backend)
    if name == "mxnet_horovod":
        need("horovod")
    text = run_job(name, tmp_path)
    ((epoch, right),) = re.findall(REPORT, text)  # rank 0 of one group
    assert epoch == "1" and 100 < int(right)
    assert list(tmp_path.glob("run*"))


def test_tensorflow_is_told_all_addresses_and_its_own(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(stat.S_IRWXU)
    run_job("tensorflow_workers", tmp_path)
    port = 20000 + os.getpid() % 10000
    for rank in (0, 1):
        script, *_ = (tmp_path / f"words.{rank}").read_text().split()
        config = json.loads((tmp_path / f"config.{rank}").read_text())
        assert script == "tensorflow_workers.py"
        assert config == {
            "cluster": {"worker": [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]},
            "task": {"type": "worker", "index": rank},
        }
