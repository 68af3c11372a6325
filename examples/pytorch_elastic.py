"""Train a convolutional network on scikit-learn's digits, by elastic Horovod.

    horovodrun -np 2 --min-np 1 --host-discovery-script ./hosts.sh \\
        python pytorch_elastic.py --epochs 10 --checkpoint run.pt

It continues while one machine remains; run it again if all have crashed.
"""

import argparse
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="of all devices")
parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"))
args = parser.parse_args()

hvd.init()
gpu = hvd.nccl_built() and torch.cuda.device_count() >= hvd.local_size()
device = torch.device(f"cuda:{hvd.local_rank()}" if gpu else "cpu")
if gpu:
    torch.cuda.set_device(device)  # before any other call that touches a GPU
if hvd.rank() == 0:
    print(f"training on {hvd.size()} x {device.type}", flush=True)

X, y = load_digits(return_X_y=True)
X, y = torch.tensor(X / 16, dtype=getattr(torch, args.dtype)), torch.tensor(y)
train, test = TensorDataset(X[:1536], y[:1536]), (X[1536:], y[1536:])

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
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())


@hvd.elastic.run  # broadcasts rank 0's state, now and when ranks change
def run(state):
    rank, world = hvd.rank(), hvd.size()
    if len(train) % world or args.batch_size % world:
        raise SystemExit(f"{world} ranks must divide 1536 examples and --batch-size")
    sampler = DistributedSampler(train, world, rank)
    loader = DataLoader(train, args.batch_size // world, sampler=sampler)
    while (epoch := state.epochs) < args.epochs:
        sampler.set_epoch(epoch)  # a different order in every epoch
        mean = 0  # loss of the epoch
        for X, y in loader:
            loss = cross_entropy(model(X.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean += loss.detach() * len(X) / len(train)
        mean = hvd.allreduce(mean, op=hvd.Sum)
        if rank == 0:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            new = args.checkpoint.with_suffix(".new")
            torch.save({**saved, "epochs": epoch + 1}, new)
            new.replace(args.checkpoint)  # in one step: a crash leaves a complete file
            with torch.no_grad():
                X, y = test
                right = (model(X.to(device)).argmax(1) == y.to(device)).sum()
            print(f"epoch {epoch + 1}: loss {mean:.4f}, {right}/261 right", flush=True)
        state.epochs = epoch + 1
        state.commit()  # from here the others resume when a rank is lost


run(hvd.elastic.TorchState(model, optimizer, epochs=first))
