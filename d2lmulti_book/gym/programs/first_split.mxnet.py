"""Train a classifier of digits on simulated devices, the batch split over them."""

import numpy
from mxnet import autograd, np, npx
from sklearn.datasets import load_digits

npx.set_np()

EPOCHS, BATCH, LR = 12, 60, 1.5


def load_data():
    X, y = load_digits(return_X_y=True)
    order = numpy.random.default_rng(0).permutation(len(y))
    X, y = X[order] / 16, y[order]
    return X[:1380], y[:1380], X[1380:], y[1380:]


def backward(W, X, y, scale):  # of scale * mean cross-entropy; returns the loss
    X, y = (np.array(part, dtype="float64") for part in (X, y))
    with autograd.record():
        loss = -scale * npx.pick(npx.log_softmax(X @ W), y).mean()
    loss.backward()
    return loss.item()


def train(seed, workers=2):
    X, y, test_X, test_y = load_data()
    rng = numpy.random.default_rng(seed)
    start, losses = rng.normal(0, 0.1, (64, 10)), []
    replicas = [np.array(start, dtype="float64") for _ in range(workers)]
    for W in replicas:
        W.attach_grad()
    for _ in range(EPOCHS):
        order, loss_sum = rng.permutation(len(y)), 0.0
        for batch in numpy.split(order, len(y) // BATCH):
            for W, shard in zip(replicas, numpy.split(batch, workers)):
                loss = backward(W, X[shard], y[shard], scale=1)
                loss_sum += loss * len(shard)
            total = sum(W.grad for W in replicas)  # an all-reduce
            step = LR * total
            for W in replicas:
                W[:] -= step
        losses.append(loss_sum / len(y))
    weights = [[W.asnumpy()] for W in replicas]
    accuracy = ((test_X @ weights[0][0]).argmax(1) == test_y).mean()
    return {"weights": weights, "losses": losses, "accuracy": accuracy}


if __name__ == "__main__":
    result = train(seed=0)
    print("losses", *(f"{loss:.3f}" for loss in result["losses"]))
    print(f"accuracy {result['accuracy']:.3f}")
