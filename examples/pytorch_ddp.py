"""Train a convolutional network on scikit-learn's digits, by DistributedDataParallel.

    torchrun --nproc-per-node 2 pytorch_ddp.py --epochs 10 --checkpoint run.pt

Run it again after a crash: it resumes after the last saved epoch.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="of all devices")
parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"))
args = parser.parse_args()

gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
if gpu:
    torch.cuda.set_device(device)  # before any other call that touches a GPU
dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
rank, world = dist.get_rank(), dist.get_world_size()
if rank == 0:
    print(f"training on {world} x {device.type}", flush=True)

X, y = load_digits(return_X_y=True)
X, y = torch.tensor(X / 16, dtype=getattr(torch, args.dtype)), torch.tensor(y)
train, test = TensorDataset(X[:1536], y[:1536]), (X[1536:], y[1536:])
if len(train) % world or args.batch_size % world:
    raise SystemExit(f"{world} ranks must divide 1536 examples and --batch-size")
sampler = DistributedSampler(train)
loader = DataLoader(train, args.batch_size // world, sampler=sampler)

torch.manual_seed(0)
model = nn.Sequential(
    nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
    nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(128, 10),
).to(device, X.dtype)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

first = 0
if args.checkpoint.exists():
    saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epochs"]
epochs = torch.tensor([first, -first], device=device)
dist.all_reduce(epochs, dist.ReduceOp.MAX)
if epochs.sum():
    raise SystemExit("ranks found different checkpoints; use one that all can read")
replica = DistributedDataParallel(model)  # averages the gradients

for epoch in range(first, args.epochs):
    sampler.set_epoch(epoch)  # a different order in every epoch
    mean = 0  # loss of the epoch
    for X, y in loader:
        loss = cross_entropy(replica(X.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean += loss.detach() * len(X) / len(train)
    dist.all_reduce(mean)
    if rank > 0:
        continue  # to the next epoch, whose first gradient waits for rank 0
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    new = args.checkpoint.with_suffix(".new")
    torch.save({**state, "epochs": epoch + 1}, new)
    os.replace(new, args.checkpoint)  # in one step: a crash leaves a complete file
    with torch.no_grad():
        X, y = test
        right = (model(X.to(device)).argmax(1) == y.to(device)).sum()
    print(f"epoch {epoch + 1}: loss {mean:.4f}, {right}/261 right", flush=True)
dist.destroy_process_group()
