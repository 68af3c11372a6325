"""Which GPUs are used, by whom, and what a wrong label does: on GPUs that are posed.

The pose is in tests/posed: the CPU poses as GPUs, and gloo as NCCL.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from d2lmulti.processes.spawn import free_port

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None
    or not importlib.metadata.version("torch").endswith("+cpu"),
    reason="PyTorch's build for CPUs can pose; one for GPUs has kernels of its own",
)


def begin(program: str, gpus: int, **more: str) -> subprocess.Popen[str]:
    """Start a program on posed GPUs; it prints what it finds as JSON, last."""
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    path = os.pathsep.join([str(ROOT / "tests/posed"), str(ROOT)])
    env |= {"D2LMULTI_POSED": str(gpus), "PYTHONPATH": path, **more}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdout=pipe, stderr=pipe, text=True
    )


def result(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def ranks(program: str, gpus: int, env: list[dict[str, str]]) -> list[Any]:
    """Run a program as two ranks, each with an environment of its own."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    both = meet | {"WORLD_SIZE": "2", "D2LMULTI_TIMEOUT": "60"}
    started = [
        begin(program, gpus, **both, RANK=str(rank), **env[rank]) for rank in (0, 1)
    ]
    return [result(process) for process in started]


COUNT = """
import json, torch, d2lmulti
from d2lmulti.cli import trials
{before}
B = d2lmulti.get_backend("torch")
print(*B.describe_gpus(), *trials(B), sep="\\n")
print(json.dumps([str(d) for d in d2lmulti.devices(2, "torch")]))
"""
KINDS = "torch.cuda.get_arch_list = lambda: {}"


@pytest.mark.parametrize(
    ("before", "driver", "kind"),
    [
        ("", "", "gpu"),
        ("", "old", "sim"),
        (KINDS.format(["sm_80", "sm_120"]), "", "sim"),  # the posed GPUs are sm_90
        (KINDS.format(["sm_80", "compute_80"]), "", "gpu"),
    ],
)
def test_only_gpus_that_can_compute_are_counted(
    before: str, driver: str, kind: str
) -> None:
    program = COUNT.format(before=before)
    process = begin(program, 2, D2LMULTI_POSED_DRIVER=driver)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(out.splitlines()[-1]) == [f"{kind}:{i}" for i in (0, 1)]
    computes = [line for line in out.splitlines() if "computes" in line]
    assert computes == [f"gpu:{i} computes" for i in (0, 1) if kind == "gpu"]
    if kind == "sim":
        reason = "driver on your system is too old" if driver else "capability 9.0"
        assert reason in out


TOUCH = """
import json, d2lmulti
from d2lmulti.processes.launcher import launch

def work():
    import torch
    from posed_torch import Machine

    some = d2lmulti.load("digits").first(64)
    run = d2lmulti.train(2, 32, epochs=1, model="mlp", dataset=some, backend="torch")
    return run.devices, sorted(Machine.touched)

found = [launch(work, 2, backend="torch", engine=e).values
         for e in ("shared_memory", "torch")]
hidden = launch(work, 2, backend="torch", gpus=False).values
print(json.dumps([*found, hidden]))
"""


def test_a_rank_touches_its_own_gpu_alone() -> None:
    gpus, sims = (["gpu:0", "gpu:1"], ["sim:0", "sim:1"])
    alone = [[gpus, [0]], [gpus, [1]]]
    assert result(begin(TOUCH, 8)) == [alone, alone, [[sims, []], [sims, []]]]


TALK = """
import json, os, d2lmulti
from d2lmulti.comm.collectives import receive, send
from d2lmulti.processes.process_group import start, stop

B = d2lmulti.get_backend("torch")
group = start("torch")
(device,) = d2lmulti.devices(2, "torch")
x = B.array([1.0, 2.0], device)
d2lmulti.allreduce([x], "ring")
y = B.array([1.0, 2.0], device)
d2lmulti.allreduce([y], "native")
assert x.tolist() == y.tolist() == [2, 4]
nccl = group.engine.nccl
stop()
print(json.dumps([str(device), nccl]))
"""
LAUNCHER = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # one of two on a machine


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("gpus", "env", "expected"),
    [
        (2, [LAUNCHER, LAUNCHER], [["sim:0", False], ["sim:1", False]]),
        (
            2,
            [LAUNCHER | {"CUDA_VISIBLE_DEVICES": str(i)} for i in (0, 1)],
            [["gpu:0", True], ["gpu:0", True]],
        ),
        (  # a scheduler that shows each task one GPU
            4,
            [
                {
                    "LOCAL_RANK": str(i),
                    "LOCAL_WORLD_SIZE": "2",
                    "CUDA_VISIBLE_DEVICES": str(3 - i),
                }
                for i in (0, 1)
            ],
            [["gpu:0", True], ["gpu:0", True]],
        ),
        (  # fewer GPUs than ranks
            1,
            [{"LOCAL_RANK": str(i), "LOCAL_WORLD_SIZE": "2"} for i in (0, 1)],
            [["sim:0", False], ["sim:1", False]],
        ),
    ],
)
def test_nccl_is_taken_where_no_two_ranks_share_a_gpu(
    gpus: int, env: list[dict[str, str]], expected: list[Any]
) -> None:
    assert ranks(TALK, gpus, env) == expected


ADOPT = """
import json, os, torch, torch.distributed as dist, d2lmulti
from d2lmulti.processes.process_group import start, stop

rank = int(os.environ["RANK"])
at = torch.device("cuda", rank)
dist.init_process_group({backend!r}, rank=rank, world_size=2, device_id=at)
group = start("torch")
words = group.engine.allgather_text(f"rank {{rank}}")
(device,) = d2lmulti.devices(2, "torch")
stop()
dist.destroy_process_group()
print(json.dumps([words, str(device), torch.cuda.current_device()]))
"""


@pytest.mark.cluster
@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_an_adopted_group_works_on_the_gpu_that_it_is_bound_to(backend: str) -> None:
    env = [{"LOCAL_RANK": str(i), "LOCAL_WORLD_SIZE": "2"} for i in (0, 1)]
    found = ranks(ADOPT.format(backend=backend), 2, env)
    words = ["rank 0", "rank 1"]
    assert found == [[words, "gpu:0", 0], [words, "gpu:1", 1]]


LABELS = """
import json, numpy as np, d2lmulti
from d2lmulti.comm.devices import with_place
from d2lmulti.errors import InvalidInput

B, model = d2lmulti.get_backend("torch"), d2lmulti.get_model("mlp")
start = [B.array(p) for p in model.initial(np.random.default_rng(0))]
params = [d2lmulti.get_params(start, "gpu:0")]
X, y = B.array(np.ones((2, 784))), B.array(np.array([3, 10]))
try:
    d2lmulti.train_batch(X, y, params, ["gpu:0"], 0.1, model=model)
except InvalidInput as error:
    said = str(error)
alive = B.numpy(B.array([1.0], "gpu:0") * 2).tolist()
print(json.dumps([said, alive, with_place("sim:3", "torch")]))
"""


def test_a_wrong_label_is_refused_before_it_ends_all_cuda_work() -> None:
    said, alive, place = result(begin(LABELS, 2))
    assert "ids from 0 to 9, got" in said
    assert alive == [2.0]
    assert place == "sim:3 (gpu:1)"
