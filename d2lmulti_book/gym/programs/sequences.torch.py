"""Train on sequences of unequal length; padding has no loss."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

EPOCHS, BATCH, LR = 5, 60, 1.0


def load_data(rng):
    """Return images as sequences of rows: token t has seen rows 0 to t."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    rows, y = X[order].reshape(-1, 1, 8, 8) / 16, torch.tensor(y[order])
    seen = np.tril(np.ones((8, 8)))[None, :, :, None]
    tokens = torch.tensor((rows * seen).reshape(-1, 8, 64))
    lengths = torch.tensor(rng.integers(1, 9, len(y)))
    mask = torch.arange(8) < lengths[:, None]  # False: padding
    return tokens, y, mask


def train(seed, workers=4):
    rng, losses = np.random.default_rng(seed), []
    tokens, y, mask = load_data(rng)
    start = torch.tensor(rng.normal(0, 0.1, (64, 10)))
    replicas = [start.clone().requires_grad_() for _ in range(workers)]
    for _ in range(EPOCHS):
        order, loss_sum = rng.permutation(1380), 0.0
        for batch in np.split(order, len(order) // BATCH):
            for W, shard in zip(replicas, np.split(batch, workers)):
                logits = (tokens[shard] @ W)[mask[shard]]
                labels = y[shard, None].expand(-1, 8)[mask[shard]]
                count = mask[shard].sum()
                loss = F.cross_entropy(logits, labels, reduction="sum") / count
                loss.backward()
                loss_sum += loss.item() * len(batch) / workers
            mean = sum(W.grad for W in replicas) / workers  # an all-reduce
            with torch.no_grad():
                for W in replicas:
                    W -= LR * mean
                    W.grad = None
        losses.append(loss_sum / len(order))
    predicted = (tokens[1380:, -1] @ replicas[0]).argmax(1)
    accuracy = (predicted == y[1380:]).double().mean().item()
    weights = [[W.detach().numpy()] for W in replicas]
    return {"weights": weights, "losses": losses, "accuracy": accuracy}


if __name__ == "__main__":
    result = train(seed=0)
    print("losses", *(f"{loss:.3f}" for loss in result["losses"]))
    print(f"accuracy {result['accuracy']:.3f}")
