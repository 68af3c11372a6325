"""Train on simulated devices, with an all-reduce as in a textbook."""

import numpy as np
import paddle
import paddle.nn.functional as F
from sklearn.datasets import load_digits

EPOCHS, BATCH, LR = 12, 60, 1.0


def load_data():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order] / 16, y[order]
    return X[:1380], y[:1380], X[1380:], y[1380:]


def backward(W, X, y, scale):  # of scale * mean cross-entropy; returns the loss
    X, y = paddle.to_tensor(X), paddle.to_tensor(y)
    loss = scale * F.cross_entropy(X @ W, y)
    loss.backward()
    return loss.item()


def allreduce(tensors):
    for other in tensors[1:]:
        tensors[0][:] += other
    for i in range(1, len(tensors)):
        tensors[i] = tensors[0]


def train(seed, workers=2):
    X, y, test_X, test_y = load_data()
    rng = np.random.default_rng(seed)
    start, losses = rng.normal(0, 0.1, (64, 10)), []
    replicas = [paddle.to_tensor(start) for _ in range(workers)]
    for W in replicas:
        W.stop_gradient = False
    for _ in range(EPOCHS):
        order, loss_sum = rng.permutation(len(y)), 0.0
        for batch in np.split(order, len(y) // BATCH):
            for W, shard in zip(replicas, np.split(batch, workers)):
                loss = backward(W, X[shard], y[shard], scale=1 / workers)
                loss_sum += loss * len(batch)
            with paddle.no_grad():
                allreduce([W.grad for W in replicas])
            with paddle.no_grad():
                for W in replicas:
                    W.subtract_(LR * W.grad)
                    W.clear_grad()
        losses.append(loss_sum / len(y))
    weights = [[W.numpy()] for W in replicas]
    accuracy = ((test_X @ weights[0][0]).argmax(1) == test_y).mean()
    return {"weights": weights, "losses": losses, "accuracy": accuracy}


if __name__ == "__main__":
    result = train(seed=0)
    print("losses", *(f"{loss:.3f}" for loss in result["losses"]))
    print(f"accuracy {result['accuracy']:.3f}")
