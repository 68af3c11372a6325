"""Train a small network on several processes; resume from the last checkpoint.

torchrun --nproc-per-node 2 --max-restarts 1 train.py FOLDER [kill]
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def save(path, state):
    new = path.with_suffix(".new")
    with open(new, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # the content must reach the disk
    os.replace(new, path)  # before the new file gets the name


path = Path(sys.argv[1], "run.pt")
dist.init_process_group("gloo")  # reads the four variables
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
X = torch.randn(64, 8)
y = X.sin().sum(1, keepdim=True)
w1, w2 = torch.randn(8, 32) / 3, torch.randn(32, 1) / 6
state = {"w": [w1, w2], "v": [0 * w1, 0 * w2], "step": 0}
if path.exists():
    state = torch.load(path)
    print("resumed after step", state["step"], flush=True)

start = state["step"]
for step in range(start, 60):
    seed = torch.Generator().manual_seed(step)
    batch = torch.randperm(64, generator=seed)[rank:32:world]
    w1, w2 = (w.requires_grad_() for w in state["w"])
    out = torch.tanh(X[batch] @ w1) @ w2
    loss = (out - y[batch]).square().mean()
    grads = torch.autograd.grad(loss, (w1, w2))
    for w, v, g in zip(state["w"], state["v"], grads, strict=True):
        dist.all_reduce(g)
        v.mul_(0.9).add_(g / world)  # momentum
        w.data -= 0.05 * v
    state["step"] = step + 1
    if state["step"] % 10 == 0 and rank == 0:
        save(path, state)
    if "kill" in sys.argv and (rank, start, step) == (1, 0, 34):
        os.kill(os.getpid(), signal.SIGKILL)  # cannot be caught
dist.destroy_process_group()
