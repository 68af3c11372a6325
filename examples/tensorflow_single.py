"""Train a convolutional network on scikit-learn's digits, on one device.

    python tensorflow_single.py --epochs 10 --checkpoint run.npz

Run it again after a crash: it resumes after the last saved epoch.
"""

import argparse
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, choices=[16, 32, 64, 128])
parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
parser.add_argument("--checkpoint", type=Path, default=Path("run.npz"))
args = parser.parse_args()

gpus = tf.config.list_physical_devices("GPU")[:1]
tf.config.set_visible_devices(gpus, "GPU")  # TensorFlow would take the memory of all
strategy = tf.distribute.get_strategy()  # the default: one device
print(f"training on {'gpu' if gpus else 'cpu'}", flush=True)
keras.utils.set_random_seed(0)
keras.backend.set_floatx(args.dtype)

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(args.dtype).reshape(-1, 8, 8, 1)
with strategy.scope():
    model = keras.Sequential([
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(), keras.layers.Flatten(), keras.layers.Dense(10),
    ])  # fmt: skip
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
variables = model.trainable_variables + optimizer.variables

first = 0
if args.checkpoint.exists():
    saved = list(np.load(args.checkpoint).values())
    first = int(saved.pop())
    for variable, value in zip(variables, saved, strict=True):
        variable.assign(value)


@tf.function
def step(X, y):
    return strategy.reduce("SUM", strategy.run(on_each, args=(X, y)), axis=None)


def on_each(X, y):
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(X))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=args.batch_size)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    return loss


for epoch in range(first, args.epochs):
    order = np.random.default_rng(epoch).permutation(1536)  # a new one every epoch
    data = tf.data.Dataset.from_tensor_slices((X[order], y[order]))
    data = strategy.experimental_distribute_dataset(data.batch(args.batch_size))
    mean = np.mean([step(*batch) for batch in data])  # loss of the epoch
    new = args.checkpoint.with_suffix(".new")
    with open(new, "wb") as file:
        np.savez(file, *(np.asarray(v) for v in variables), epoch + 1)
    os.replace(new, args.checkpoint)  # in one step: a crash leaves a complete file
    right = (np.argmax(model(X[1536:]), axis=1) == y[1536:]).sum()
    print(f"epoch {epoch + 1}: loss {mean:.4f}, {right}/261 right", flush=True)
