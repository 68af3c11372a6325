"""Train on simulated devices; after half of the epochs, resume a checkpoint."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

EPOCHS, BATCH, LR, MOMENTUM = 6, 60, 0.05, 0.9


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


def start(seed, workers):
    replicas = make_replicas(seed, workers)
    optimizers = [torch.optim.SGD(m.parameters(), LR, MOMENTUM) for m in replicas]
    return replicas, optimizers


def save(replicas, optimizers):
    checkpoint = {"model": replicas[0].state_dict()}
    return copy.deepcopy(checkpoint)  # as if written to a file


def load(checkpoint, replicas, optimizers):
    for model, optimizer in zip(replicas, optimizers):
        model.load_state_dict(checkpoint["model"])


def train(seed, workers=4):
    X, y, test_X, test_y = load_data()
    replicas, optimizers = start(seed, workers)
    losses = []
    for epoch in range(EPOCHS):
        if epoch == EPOCHS // 2:  # the job ends, and a new one resumes
            checkpoint = save(replicas, optimizers)
            replicas, optimizers = start(seed, workers)
            load(checkpoint, replicas, optimizers)
        order = np.random.default_rng([seed, epoch]).permutation(len(y))
        loss_sum = 0.0
        for batch in np.split(order, len(y) // BATCH):
            for model, shard in zip(replicas, np.split(batch, workers)):
                model.zero_grad()
                loss = F.cross_entropy(model(X[shard]), y[shard])
                loss.backward()
                loss_sum += loss.item() * len(shard)
            average_gradients(replicas)
            for optimizer in optimizers:
                optimizer.step()
        losses.append(loss_sum / len(y))
    weights = [[p.detach().numpy() for p in m.parameters()] for m in replicas]
    accuracy = (replicas[0](test_X).argmax(1) == test_y).double().mean().item()
    return {"weights": weights, "losses": losses, "accuracy": accuracy}


if __name__ == "__main__":
    result = train(seed=0)
    print("losses", *(f"{loss:.3f}" for loss in result["losses"]))
    print(f"accuracy {result['accuracy']:.3f}")
