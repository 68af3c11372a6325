"""Train a linear model on two processes, and save it after every epoch.

torchrun --nproc-per-node 2 first.py
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()

torch.manual_seed(0)
X = torch.randn(96, 8)
examples = TensorDataset(X, X.sum(1, keepdim=True))
sampler = DistributedSampler(examples)
loader = DataLoader(examples, 8, sampler=sampler)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

with tempfile.TemporaryDirectory() as folder:
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            new = os.path.join(folder, "run.new")
            torch.save(model.module.state_dict(), new)
            os.replace(new, os.path.join(folder, "run.pt"))
            dist.barrier()  # no rank continues before the file exists
        print(f"epoch {epoch} is done")
