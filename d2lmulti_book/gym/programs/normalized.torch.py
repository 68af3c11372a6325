"""Train on simulated devices a network with batch normalization."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

EPOCHS, BATCH, LR = 6, 60, 0.3


def load_data():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = torch.tensor(X[order] / 16), torch.tensor(y[order])
    return X[:1380], y[:1380], X[1380:], y[1380:]


def batch_norm(H, over):
    """Normalize the units of H by their mean and variance in `over`."""
    return (H - over.mean(0)) / (over.var(0, unbiased=False) + 1e-5).sqrt()


def forward(replicas, Xs):
    """Return the logits of each replica for its shard."""
    hidden = [X @ W1 for (W1, W2, b2), X in zip(replicas, Xs)]
    normal = [batch_norm(H, over=H) for H in hidden]
    return [torch.tanh(N) @ W2 + b2 for (W1, W2, b2), N in zip(replicas, normal)]


def train(seed, workers=4):
    X, y, test_X, test_y = load_data()
    rng, losses = np.random.default_rng(seed), []
    start = [torch.tensor(rng.normal(0, 0.2, s)) for s in [(64, 32), (32, 10), 10]]
    replicas = [[p.clone().requires_grad_() for p in start] for _ in range(workers)]
    for _ in range(EPOCHS):
        order, loss_sum = rng.permutation(len(y)), 0.0
        for batch in np.split(order, len(y) // BATCH):
            shards = np.split(batch, workers)
            logits = forward(replicas, [X[shard] for shard in shards])
            loss = sum(F.cross_entropy(Z, y[s]) for Z, s in zip(logits, shards))
            loss.backward()  # each replica gets its gradient
            loss_sum += loss.item() / workers * len(batch)
            with torch.no_grad():
                for params in zip(*replicas):
                    mean = sum(p.grad for p in params) / workers  # an all-reduce
                    for p in params:
                        p -= LR * mean
                        p.grad = None
        losses.append(loss_sum / len(y))
    (logits,) = forward(replicas[:1], [test_X])
    accuracy = (logits.argmax(1) == test_y).double().mean().item()
    weights = [[p.detach().numpy() for p in replica] for replica in replicas]
    return {"weights": weights, "losses": losses, "accuracy": accuracy}


if __name__ == "__main__":
    result = train(seed=0)
    print("losses", *(f"{loss:.3f}" for loss in result["losses"]))
    print(f"accuracy {result['accuracy']:.3f}")
