"""The scripts of `examples/` take one GPU per rank, or none: the CPU poses as GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import run_notebooks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("posable"),
    pytest.mark.xdist_group("scripts_on_gpus"),  # set up once
]

SCRIPTS = ["pytorch_ddp", "pytorch_fsdp", "pytorch_elastic"]
# Run each script up to its data, as the last of two and of three ranks of a machine,
# and print what it has set up. NCCL and Horovod are not posed.
SET_UP = """
import json, os, runpy, sys, types
import sklearn.datasets, torch, torch.distributed as dist

horovod, hvd = types.ModuleType("horovod"), types.ModuleType("horovod.torch")
sys.modules |= {"horovod": horovod, "horovod.torch": hvd}
horovod.torch = hvd
hvd.init, hvd.nccl_built = lambda: None, lambda: 21805

def init_process_group(backend, device_id=None):
    said.update(backend=backend, device_id=device_id and str(device_id),
                current_at_init=torch.cuda.current_device())

class Ready(Exception):
    pass

def load_digits(**_):
    device = sys._getframe(1).f_globals["device"]
    said.update(device=str(device), current=torch.cuda.current_device())
    raise Ready

dist.init_process_group, sklearn.datasets.load_digits = init_process_group, load_digits
everything = {}
for path in sys.argv[1:]:
    for ranks in (2, 3):
        torch.cuda.set_device(0)
        os.environ.update(LOCAL_RANK=str(ranks - 1), LOCAL_WORLD_SIZE=str(ranks))
        hvd.rank = hvd.local_rank = dist.get_rank = lambda: ranks - 1
        hvd.size = hvd.local_size = dist.get_world_size = lambda: ranks
        said, sys.argv = {}, [path]
        try:
            runpy.run_path(path)
        except Ready:
            everything[f"{os.path.basename(path)} {ranks}"] = said
print(json.dumps(everything))
"""


@pytest.fixture(scope="module")
def set_up() -> dict[str, dict[str, object]]:
    """What the last of two and of three ranks sets up on a machine with two GPUs."""
    paths = [str(EXAMPLES / f"{script}.py") for script in SCRIPTS]
    done = subprocess.run(
        [sys.executable, "-c", SET_UP, *paths],
        env=os.environ | run_notebooks.posing("2"), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1500:]
    found: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_rank_takes_the_gpu_of_its_number_or_none(script: str, set_up: dict) -> None:
    found = set_up[f"{script}.py 2"]
    assert (found["device"], found["current"]) == ("cuda:1", 1)
    if script != "pytorch_elastic":  # Horovod makes its communicators by itself
        assert found["backend"] == "nccl"
        assert (found["device_id"], found["current_at_init"]) == ("cuda:1", 1)
    found = set_up[f"{script}.py 3"]  # more ranks than GPUs
    assert (found["device"], found["current"]) == ("cpu", 0)
    assert found.get("backend", "gloo") == "gloo" and not found.get("device_id")
