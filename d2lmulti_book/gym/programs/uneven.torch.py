"""Train on simulated devices; batches need not divide evenly."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

EPOCHS, BATCH, LR = 8, 50, 0.5


def load_data():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = torch.tensor(X[order] / 16), torch.tensor(y[order])
    return X[:1380], y[:1380], X[1380:], y[1380:]


def backward(W, X, y, scale):  # of scale * mean cross-entropy; returns the loss
    loss = scale * F.cross_entropy(X @ W, y)
    loss.backward()
    return loss.item()


def train(seed, workers=4):
    X, y, test_X, test_y = load_data()
    rng = np.random.default_rng(seed)
    start, losses = rng.normal(0, 0.1, (64, 10)), []
    replicas = [torch.tensor(start, requires_grad=True) for _ in range(workers)]
    for _ in range(EPOCHS):
        order, loss_sum = rng.permutation(len(y)), 0.0
        for first in range(0, len(y), BATCH):
            batch = order[first : first + BATCH]
            for W, shard in zip(replicas, np.array_split(batch, workers)):
                weight = 1 / workers
                loss = backward(W, X[shard], y[shard], scale=weight)
                loss_sum += loss * len(batch)
            total = sum(W.grad for W in replicas)  # an all-reduce
            step = LR * total
            with torch.no_grad():
                for W in replicas:
                    W -= step
                    W.grad = None
        losses.append(loss_sum / len(y))
    weights = [[W.detach().numpy()] for W in replicas]
    accuracy = ((test_X @ replicas[0]).argmax(1) == test_y).double().mean().item()
    return {"weights": weights, "losses": losses, "accuracy": accuracy}


if __name__ == "__main__":
    result = train(seed=0)
    print("losses", *(f"{loss:.3f}" for loss in result["losses"]))
    print(f"accuracy {result['accuracy']:.3f}")
