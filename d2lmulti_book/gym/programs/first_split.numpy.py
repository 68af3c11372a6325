"""Train a classifier of digits on simulated devices, the batch split over them."""

import numpy as np
from sklearn.datasets import load_digits

EPOCHS, BATCH, LR = 12, 60, 1.5


def load_data():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order] / 16, y[order]
    return X[:1380], y[:1380], X[1380:], y[1380:]


class Parameter:
    def __init__(self, value):
        self.value, self.grad = value.copy(), np.zeros_like(value)


def backward(W, X, y, scale):  # of scale * mean cross-entropy; returns the loss
    Z = X @ W.value
    log_P = Z - np.log(np.exp(Z).sum(1, keepdims=True))
    error = np.exp(log_P)
    error[np.arange(len(y)), y] -= 1
    W.grad[:] = scale * X.T @ error / len(y)
    return -scale * log_P[np.arange(len(y)), y].mean()


def train(seed, workers=2):
    X, y, test_X, test_y = load_data()
    rng = np.random.default_rng(seed)
    start, losses = rng.normal(0, 0.1, (64, 10)), []
    replicas = [Parameter(start) for _ in range(workers)]
    for _ in range(EPOCHS):
        order, loss_sum = rng.permutation(len(y)), 0.0
        for batch in np.split(order, len(y) // BATCH):
            for W, shard in zip(replicas, np.split(batch, workers)):
                loss = backward(W, X[shard], y[shard], scale=1)
                loss_sum += loss * len(shard)
            total = sum(W.grad for W in replicas)  # an all-reduce
            step = LR * total
            for W in replicas:
                W.value -= step
        losses.append(loss_sum / len(y))
    weights = [[W.value] for W in replicas]
    accuracy = ((test_X @ weights[0][0]).argmax(1) == test_y).mean()
    return {"weights": weights, "losses": losses, "accuracy": accuracy}


if __name__ == "__main__":
    result = train(seed=0)
    print("losses", *(f"{loss:.3f}" for loss in result["losses"]))
    print(f"accuracy {result['accuracy']:.3f}")
