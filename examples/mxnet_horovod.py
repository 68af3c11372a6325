"""Train a convolutional network on scikit-learn's digits, by Horovod.

    horovodrun -np 2 python mxnet_horovod.py --epochs 10 --checkpoint run

Run it again after a crash: it resumes after the last saved epoch.
"""

import argparse
import os
import shutil
from pathlib import Path

import horovod.mxnet as hvd
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
hvd.init()
rank, world = hvd.rank(), hvd.size()
gpu = hvd.nccl_built() and mx.context.num_gpus() >= hvd.local_size()
device = mx.gpu(hvd.local_rank()) if gpu else mx.cpu()
if rank == 0:
    print(f"training on {world} x {device.device_type}", flush=True)
if 1536 % world or args.batch_size % world:
    raise SystemExit(f"{world} ranks must divide 1536 examples and --batch-size")

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
trainer = hvd.DistributedTrainer(model.collect_params(), "sgd", settings)

saved = [int(path.suffix[1:]) for path in args.checkpoint.glob("epoch.*")]
first = max(saved, default=0)
if first:
    folder = args.checkpoint / f"epoch.{first}"
    model.load_parameters(f"{folder}/model", ctx=device)
    trainer.load_states(f"{folder}/optimizer")
found = hvd.allgather(np.array([first])).asnumpy()
if found.min() != found.max():
    raise SystemExit("ranks found different checkpoints; use one that all can read")
hvd.broadcast_parameters(model.collect_params(), root_rank=0)

for epoch in range(first, args.epochs):
    order = numpy.random.default_rng(epoch).permutation(1536)  # a new one every epoch
    mean = np.zeros(1, dtype=y.dtype, ctx=device)  # loss of the epoch
    for i in range(0, len(order), args.batch_size):
        part = order[i : i + args.batch_size][rank::world]
        with autograd.record():
            losses = losses_of(model(X[part]), y[part])
        losses.backward()
        trainer.step(len(part))  # divides by this rank's shard size, and by world
        mean = mean + losses.sum() / len(order)
    mean = hvd.allreduce(mean, average=False).asnumpy()  # waits for the steps, too
    if rank > 0:
        continue  # to the next epoch, whose first gradient waits for rank 0
    new = args.checkpoint / "new"
    new.mkdir(parents=True, exist_ok=True)
    model.save_parameters(f"{new}/model")
    trainer.save_states(f"{new}/optimizer")
    os.replace(new, args.checkpoint / f"epoch.{epoch + 1}")  # complete, or absent
    # This epoch is complete; keep it and the one before it.
    shutil.rmtree(args.checkpoint / f"epoch.{epoch - 1}", ignore_errors=True)
    right = int((model(X[1536:]).argmax(1).astype(y.dtype) == y[1536:]).sum())
    print(f"epoch {epoch + 1}: loss {float(mean):.4f}, {right}/261 right", flush=True)
