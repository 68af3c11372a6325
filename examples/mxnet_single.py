"""Train a convolutional network on scikit-learn's digits, on one device.

    python mxnet_single.py --epochs 10 --checkpoint run

Run it again after a crash: it resumes after the last saved epoch.
"""

import argparse
import os
import shutil
from pathlib import Path

import mxnet as mx
import numpy
from mxnet import autograd, gluon, np, npx
from mxnet.gluon import nn
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="of all devices")
parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
parser.add_argument("--checkpoint", type=Path, default=Path("run"))
args = parser.parse_args()

npx.set_np()
device = mx.gpu(0) if mx.context.num_gpus() else mx.cpu()
print(f"training on {device.device_type}", flush=True)

X, y = load_digits(return_X_y=True)
X = (X / 16).reshape(-1, 1, 8, 8)
X, y = (np.array(a, dtype=args.dtype, ctx=device) for a in (X, y))

mx.random.seed(0)
model = nn.Sequential()
model.add(nn.Conv2D(16, 3, padding=1, activation="relu", in_channels=1))
model.add(nn.MaxPool2D())
model.add(nn.Conv2D(32, 3, padding=1, activation="relu", in_channels=16))
model.add(nn.MaxPool2D(), nn.Dense(10, in_units=128))
model.initialize(mx.init.Xavier(), ctx=device)
model.cast(args.dtype)
losses_of = gluon.loss.SoftmaxCrossEntropyLoss()
settings = {"learning_rate": 0.1, "momentum": 0.9}
trainer = gluon.Trainer(model.collect_params(), "sgd", settings)

saved = [int(path.suffix[1:]) for path in args.checkpoint.glob("epoch.*")]
first = max(saved, default=0)
if first:
    folder = args.checkpoint / f"epoch.{first}"
    model.load_parameters(f"{folder}/model", ctx=device)
    trainer.load_states(f"{folder}/optimizer")

for epoch in range(first, args.epochs):
    order = numpy.random.default_rng(epoch).permutation(1536)  # a new one every epoch
    mean = 0  # loss of the epoch
    for i in range(0, len(order), args.batch_size):
        part = order[i : i + args.batch_size]
        with autograd.record():
            losses = losses_of(model(X[part]), y[part])
        losses.backward()
        trainer.step(len(part))  # divides the sum by the size of the batch
        mean = mean + losses.sum() / len(order)
    new = args.checkpoint / "new"
    new.mkdir(parents=True, exist_ok=True)
    model.save_parameters(f"{new}/model")
    trainer.save_states(f"{new}/optimizer")
    os.replace(new, args.checkpoint / f"epoch.{epoch + 1}")  # complete, or absent
    # This epoch is complete; keep it and the one before it.
    shutil.rmtree(args.checkpoint / f"epoch.{epoch - 1}", ignore_errors=True)
    right = int((model(X[1536:]).argmax(1).astype(y.dtype) == y[1536:]).sum())
    print(f"epoch {epoch + 1}: loss {float(mean):.4f}, {right}/261 right", flush=True)
