"""Train on simulated devices, the gradient clipped to a norm of CLIP."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

EPOCHS, BATCH, LR, CLIP = 5, 60, 0.5, 0.65


def load_data():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = torch.tensor(X[order] / 16), torch.tensor(y[order])
    return X[:1380], y[:1380], X[1380:], y[1380:]


def make_replicas(seed, workers):
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)]
    model = nn.Sequential(*layers).double()
    return [copy.deepcopy(model) for _ in range(workers)]


def average_gradients(replicas):  # an all-reduce, divided by the number of workers
    for params in zip(*(model.parameters() for model in replicas)):
        mean = sum(p.grad for p in params) / len(params)
        for p in params:
            p.grad = mean.clone()


def train(seed, workers=4):
    X, y, test_X, test_y = load_data()
    rng, losses = np.random.default_rng(seed), []
    replicas = make_replicas(seed, workers)
    for _ in range(EPOCHS):
        order, loss_sum = rng.permutation(len(y)), 0.0
        for batch in np.split(order, len(y) // BATCH):
            for model, shard in zip(replicas, np.split(batch, workers)):
                model.zero_grad()
                loss = F.cross_entropy(model(X[shard]), y[shard])
                loss.backward()
                loss_sum += loss.item() * len(shard)
            for model in replicas:
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            average_gradients(replicas)
            with torch.no_grad():
                for p in (p for model in replicas for p in model.parameters()):
                    p -= LR * p.grad
        losses.append(loss_sum / len(y))
    weights = [[p.detach().numpy() for p in m.parameters()] for m in replicas]
    accuracy = (replicas[0](test_X).argmax(1) == test_y).double().mean().item()
    return {"weights": weights, "losses": losses, "accuracy": accuracy}


if __name__ == "__main__":
    result = train(seed=0)
    print("losses", *(f"{loss:.3f}" for loss in result["losses"]))
    print(f"accuracy {result['accuracy']:.3f}")
