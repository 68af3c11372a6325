"""Train on devices of one machine: copy, split, add up, step."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

EPOCHS, BATCH, LR = 8, 60, 0.3


def load_data():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = torch.tensor(X[order] / 16), torch.tensor(y[order])
    return X[:1380], y[:1380], X[1380:], y[1380:]


def get_params(params, device):
    """Copy the parameters to a device."""
    new_params = [p.to(device) for p in params]
    for p in new_params:
        p.requires_grad_()
    return new_params


def net(params, X):
    W1, b1, W2, b2 = params
    return torch.tanh(X @ W1 + b1) @ W2 + b2


def train(seed, workers=2):
    X, y, test_X, test_y = load_data()
    rng, losses = np.random.default_rng(seed), []
    shapes = [(64, 32), (32,), (32, 10), (10,)]
    params = [torch.tensor(rng.normal(0, 0.2, shape)) for shape in shapes]
    replicas = [get_params(params, "cpu") for _ in range(workers)]
    for _ in range(EPOCHS):
        order, loss_sum = rng.permutation(len(y)), 0.0
        for batch in np.split(order, len(y) // BATCH):
            for replica, shard in zip(replicas, np.split(batch, workers)):
                loss = F.cross_entropy(net(replica, X[shard]), y[shard])
                loss.backward()
                loss_sum += loss.item() * len(shard)
            with torch.no_grad():
                means = [sum(p.grad for p in ps) / workers for ps in zip(*replicas)]
                for replica in replicas:
                    for p, mean in zip(replica, means):
                        p -= LR * mean
                        p.grad = None
        losses.append(loss_sum / len(y))
    weights = [[p.detach().numpy() for p in replica] for replica in replicas]
    accuracy = (net(replicas[0], test_X).argmax(1) == test_y).double().mean().item()
    return {"weights": weights, "losses": losses, "accuracy": accuracy}


if __name__ == "__main__":
    result = train(seed=0)
    print("losses", *(f"{loss:.3f}" for loss in result["losses"]))
    print(f"accuracy {result['accuracy']:.3f}")
