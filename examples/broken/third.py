"""Train a linear model on two processes, and next to it on one device.

torchrun --nproc-per-node 2 third.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")

torch.manual_seed(0)
X = torch.randn(96, 8, dtype=torch.float64)
y = X.sum(1, keepdim=True) + torch.randn(96, 1, dtype=torch.float64)
examples = TensorDataset(X, y)
loader = DataLoader(examples, 8, sampler=DistributedSampler(examples))
one_device = nn.Linear(8, 1).double()
model = DistributedDataParallel(nn.Linear(8, 1).double())
model.module.load_state_dict(one_device.state_dict())


def step(network, optimizer, x, y):
    loss = mse_loss(network(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


mine = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(one_device.parameters(), lr=0.1)
for epoch in range(3):
    for x, target in loader:
        step(model, mine, x, target)
    # One device shuffles by the number of the epoch, and takes 2 times 8 examples.
    order = torch.randperm(96, generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(16):
        step(one_device, other, X[batch], y[batch])
    same = torch.allclose(model.module.weight, one_device.weight, 1e-12, 1e-12)
    print(f"epoch {epoch} is done; weights like those of one device: {same}")
