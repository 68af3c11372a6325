"""Train with a sharded momentum (ZeRO 1), and resume from a checkpoint."""

import numpy as np
from sklearn.datasets import load_digits

EPOCHS, BATCH, LR, MOMENTUM = 8, 60, 0.1, 0.9
SIZE = 648  # 64 x 10 weights, padded so that 2, 3 and 4 ranks divide them


def load_data():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order] / 16, y[order]
    return X[:1380], y[:1380], X[1380:], y[1380:]


def loss_and_gradient(vector, X, y):  # of the mean cross-entropy
    Z = X @ vector[:640].reshape(64, 10)
    log_P = Z - np.log(np.exp(Z).sum(1, keepdims=True))
    error = np.exp(log_P)
    error[np.arange(len(y)), y] -= 1
    grad = np.pad((X.T @ error / len(y)).ravel(), (0, SIZE - 640))
    return -log_P[np.arange(len(y)), y].mean(), grad


def save(vector, shards):
    """Return the checkpoint that the ranks write; rank r has shards[r] in memory."""
    files = {"weights": vector.copy()}
    for rank, shard in enumerate(shards):
        if rank == 0:  # one process is enough to write a file
            files[f"momentum {rank}"] = shard.copy()
    return files


def load(files, workers):
    """Return the weights and each rank's shard of the momentum; it begins at zero."""
    zero = np.zeros(SIZE // workers)
    shards = [files.get(f"momentum {rank}", zero).copy() for rank in range(workers)]
    return files["weights"].copy(), shards


def train(seed, workers=4):
    X, y, test_X, test_y = load_data()
    vector = np.random.default_rng(seed).normal(0, 0.1, SIZE)
    shards = [np.zeros(SIZE // workers) for _ in range(workers)]
    losses = []
    for epoch in range(EPOCHS):
        if epoch == EPOCHS // 2:  # the job ends, and a new one resumes
            vector, shards = load(save(vector, shards), workers)
        order = np.random.default_rng([seed, epoch]).permutation(len(y))
        loss_sum = 0.0
        for batch in np.split(order, len(y) // BATCH):
            parts = [
                loss_and_gradient(vector, X[part], y[part])
                for part in np.split(batch, workers)
            ]
            loss_sum += sum(loss for loss, _ in parts) / workers * len(batch)
            mean = sum(grad for _, grad in parts) / workers
            for momentum, grad in zip(shards, np.split(mean, workers)):
                momentum[:] = MOMENTUM * momentum + grad  # reduce-scatter
            vector -= LR * np.concatenate(shards)  # all-gather
        losses.append(loss_sum / len(y))
    W = vector[:640].reshape(64, 10)
    accuracy = ((test_X @ W).argmax(1) == test_y).mean()
    return {"weights": [[W]], "losses": losses, "accuracy": accuracy}


if __name__ == "__main__":
    result = train(seed=0)
    print("losses", *(f"{loss:.3f}" for loss in result["losses"]))
    print(f"accuracy {result['accuracy']:.3f}")
