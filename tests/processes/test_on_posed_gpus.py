"""Which GPUs are used, by whom, and what a wrong label does: on GPUs that are posed.

The pose is in tests/posed: the CPU poses as GPUs, and gloo as NCCL. All programs run in
forks of one process that has imported PyTorch, each on a machine of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from d2lmulti.processes.spawn import free_port

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.xdist_group("posed"), pytest.mark.usefixtures("posable")]

# Runs programs, each as one or more ranks: name -> GPUs, a program, and what each
# rank's environment has in addition. Prints name -> exit codes and what each has said.
FORKS = """
import json, os, sys, traceback
import d2lmulti.cli, d2lmulti.processes.pytorch, posed_torch, torch

def fork(gpus, program, extra):
    reader, writer = os.pipe()
    if pid := os.fork():
        os.close(writer)
        return pid, os.fdopen(reader)
    try:
        os.dup2(writer, 1)
        os.environ.update(extra)
        posed_torch.see(gpus)
        exec(program, {})
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

begun = {name: [fork(gpus, program, extra) for extra in env]
         for name, (gpus, program, env) in json.load(sys.stdin).items()}
found = {}
for name, ranks in begun.items():  # all of them run at the same time
    said = [out.read() for _, out in ranks]
    found[name] = [os.waitpid(pid, 0)[1] for pid, _ in ranks], said
print(json.dumps(found))
"""

COUNT = """
import json, torch, d2lmulti
from d2lmulti.cli import trials
from posed_torch import Machine

{before}
B = d2lmulti.get_backend("torch")
print(*B.describe_gpus(), *trials(B), sep="\\n")
print(json.dumps([str(d) for d in d2lmulti.devices(2, "torch")]))
"""
# What is on two machines' GPUs -> what is counted, and the reason that is given.
ARCHITECTURES = "torch.cuda.get_arch_list = lambda: {}"  # the posed GPUs are sm_90
COUNTED = {
    "all is well": ("", "gpu", ""),
    "old driver": ("Machine.old_driver = True", "sim", "driver on your system"),
    "no kernels": (
        ARCHITECTURES.format(["sm_80", "sm_120"]), "sim", "capability 9.0",
    ),
    "compiled on the spot": (ARCHITECTURES.format(["sm_80", "compute_80"]), "gpu", ""),
}  # fmt: skip

TOUCH = """
import json, d2lmulti
from d2lmulti.processes.launcher import launch

def work():
    import torch
    from posed_torch import Machine

    some = d2lmulti.load("digits").first(64)
    run = d2lmulti.train(2, 32, epochs=1, model="mlp", dataset=some, backend="torch")
    return run.devices, sorted(Machine.touched)

found = launch(work, 2, backend="torch", engine="shared_memory").values
hidden = launch(work, 2, backend="torch", gpus=False).values
print(json.dumps([found, hidden]))
"""

TALK = """
import json, os, d2lmulti
from d2lmulti.processes.process_group import start, stop
from posed_torch import Machine

B = d2lmulti.get_backend("torch")
group = start("torch")
(device,) = d2lmulti.devices(2, "torch")
x = B.array([1.0, 2.0], device)
d2lmulti.allreduce([x], "ring")
y = B.array([1.0, 2.0], device)
d2lmulti.allreduce([y], "native")
assert x.tolist() == y.tolist() == [2, 4]
{train}
nccl = group.engine.nccl
stop()
print(json.dumps([str(device), nccl, sorted(Machine.touched) if nccl else []]))
"""
TRAIN = """
some = d2lmulti.load("digits").first(64)
run = d2lmulti.train(2, 32, epochs=1, model="mlp", dataset=some, backend="torch")
assert run.devices == ["gpu:0", "gpu:1"]
"""
LAUNCHER = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # one of two on a machine
LOCAL = [{"LOCAL_RANK": str(i), "LOCAL_WORLD_SIZE": "2"} for i in (0, 1)]
SIMULATED = [["sim:0", False, []], ["sim:1", False, []]]
OWN = [["gpu:0", True, [0]]] * 2  # of those that a rank sees
# GPUs of the machine, what each rank is told, and where it computes.
RANKS: dict[str, tuple[int, list[dict[str, str]], list[Any]]] = {
    "a GPU for each rank": (8, LOCAL, [["gpu:0", True, [0]], ["gpu:1", True, [1]]]),
    "fewer GPUs than ranks": (1, LOCAL, SIMULATED),
    "two launchers": (2, [LAUNCHER] * 2, SIMULATED),
    "two launchers, a GPU each": (
        2, [LAUNCHER | {"CUDA_VISIBLE_DEVICES": str(i)} for i in (0, 1)], OWN,
    ),
    "a scheduler that shows each task one GPU": (
        4, [LOCAL[i] | {"CUDA_VISIBLE_DEVICES": str(3 - i)} for i in (0, 1)], OWN,
    ),
}  # fmt: skip

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
ADOPTED = ["nccl", "cpu:gloo,cuda:nccl"]

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


def two(env: list[dict[str, str]]) -> list[dict[str, str]]:
    """Add what two ranks need to meet."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    both = meet | {"WORLD_SIZE": "2", "D2LMULTI_TIMEOUT": "200"}
    return [both | {"RANK": str(rank)} | own for rank, own in enumerate(env)]


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """What each rank of every program has printed."""
    alone: list[dict[str, str]] = [{}]
    jobs = {"touch": (8, TOUCH, alone), "labels": (2, LABELS, alone)}
    for name, (before, *_) in COUNTED.items():
        jobs[name] = (2, COUNT.format(before=before), alone)
    for name, (gpus, env, _) in RANKS.items():
        train = TRAIN if name == "a GPU for each rank" else ""
        jobs[name] = (gpus, TALK.format(train=train), two(env))
    for backend in ADOPTED:
        jobs[backend] = (2, ADOPT.format(backend=backend), two(LOCAL))
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    path = os.pathsep.join([str(ROOT / "tests/posed"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", FORKS], env=env | {"D2LMULTI_POSED": "8",
        "PYTHONPATH": path}, input=json.dumps(jobs), capture_output=True, text=True,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    failed = [name for name, (codes, _) in found.items() if any(codes)]
    assert not failed, f"{failed}: {done.stderr}"
    return {name: texts for name, (_, texts) in found.items()}


def results(texts: list[str]) -> list[Any]:
    """The last line of each rank, in JSON."""
    return [json.loads(text.splitlines()[-1]) for text in texts]


@pytest.mark.parametrize("name", COUNTED)
def test_only_gpus_that_can_compute_are_counted(said: dict, name: str) -> None:
    _, kind, reason = COUNTED[name]
    assert results(said[name]) == [[f"{kind}:{i}" for i in (0, 1)]]
    computes = [line for line in said[name][0].splitlines() if "computes" in line]
    assert computes == [f"gpu:{i} computes" for i in (0, 1) if kind == "gpu"]
    assert reason in said[name][0]


def test_a_rank_touches_its_own_gpu_alone(said: dict) -> None:
    gpus, sims = ["gpu:0", "gpu:1"], ["sim:0", "sim:1"]
    found, hidden = results(said["touch"])[0]
    assert found == [[gpus, [0]], [gpus, [1]]]
    assert hidden == [[sims, []], [sims, []]]


@pytest.mark.parametrize("name", RANKS)
def test_nccl_is_taken_where_no_two_ranks_share_a_gpu(said: dict, name: str) -> None:
    assert results(said[name]) == RANKS[name][2]


@pytest.mark.parametrize("backend", ADOPTED)
def test_an_adopted_group_works_on_the_gpu_that_it_is_bound_to(
    said: dict, backend: str
) -> None:
    words = ["rank 0", "rank 1"]
    assert results(said[backend]) == [[words, "gpu:0", 0], [words, "gpu:1", 1]]


def test_a_wrong_label_is_refused_before_it_ends_all_cuda_work(said: dict) -> None:
    ((error, alive, place),) = results(said["labels"])
    assert "ids from 0 to 9, got" in error
    assert alive == [2.0]
    assert place == "sim:3 (gpu:1)"
