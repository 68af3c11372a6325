"""Train on scikit-learn's digits: torchrun --nproc-per-node 2 train.py."""

import os

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.utils import data

gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu"
if gpu:
    torch.cuda.set_device(device)
distributed.init_process_group("nccl" if gpu else "gloo")  # joins the group

digits = data.TensorDataset(*map(torch.tensor, load_digits(return_X_y=True)))
sampler = data.DistributedSampler(digits)  # divides the images

torch.manual_seed(0)
model = nn.Linear(64, 10).double().to(device)
net = nn.parallel.DistributedDataParallel(model)  # wraps it
sgd = torch.optim.SGD(net.parameters(), lr=0.001)
for epoch in range(3):
    sampler.set_epoch(epoch)  # a new order in each epoch
    for X, y in data.DataLoader(digits, 32, sampler=sampler):
        loss = nn.functional.cross_entropy(net(X.to(device)), y.to(device))
        sgd.zero_grad()
        loss.backward()  # also averages the gradients over the ranks
        sgd.step()

print(f"rank {distributed.get_rank()}: norm {model.weight.norm():.9f}")
distributed.destroy_process_group()
