"""Train a convolutional network on scikit-learn's digits, on one device.

    python paddle_single.py --epochs 10 --checkpoint run.pdckpt

Run it again after a crash: it resumes after the last saved epoch.
"""

import argparse
import os
from pathlib import Path

import paddle
from paddle import nn
from paddle.io import DataLoader, DistributedBatchSampler, TensorDataset
from paddle.nn.functional import cross_entropy
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="of all devices")
parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
parser.add_argument("--checkpoint", type=Path, default=Path("run.pdckpt"))
args = parser.parse_args()

rank, world = 0, 1
print(f"training on {paddle.device.get_device()}", flush=True)

paddle.set_default_dtype(args.dtype)
X, y = load_digits(return_X_y=True)
X, y = paddle.to_tensor((X / 16).astype(args.dtype)), paddle.to_tensor(y)
X = X.reshape([-1, 1, 8, 8])
train, test = TensorDataset([X[:1536], y[:1536]]), (X[1536:], y[1536:])
per_rank = args.batch_size // world
sampler = DistributedBatchSampler(train, per_rank, world, rank, shuffle=True)
loader = DataLoader(train, batch_sampler=sampler)

paddle.seed(0)
model = nn.Sequential(
    nn.Conv2D(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2),
    nn.Conv2D(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2),
    nn.Flatten(), nn.Linear(128, 10),
)  # fmt: skip
optimizer = paddle.optimizer.Momentum(0.1, 0.9, model.parameters())

first = 0
if args.checkpoint.exists():
    saved = paddle.load(str(args.checkpoint))
    model.set_state_dict(saved["model"])
    optimizer.set_state_dict(saved["optimizer"])
    first = saved["epochs"]

for epoch in range(first, args.epochs):
    sampler.set_epoch(epoch)  # a different order in every epoch
    mean = paddle.zeros([])  # loss of the epoch
    for X, y in loader:
        loss = cross_entropy(model(X), y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        mean += loss.detach() * (len(X) / len(train))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    new = args.checkpoint.with_suffix(".new")
    paddle.save({**state, "epochs": epoch + 1}, str(new))
    os.replace(new, args.checkpoint)  # in one step: a crash leaves a complete file
    with paddle.no_grad():
        right = int((model(test[0]).argmax(1) == test[1]).sum())
    print(f"epoch {epoch + 1}: loss {float(mean):.4f}, {right}/261 right", flush=True)
