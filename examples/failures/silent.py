"""Train 20 steps, with a fault that raises no error: silent.py [FAULT]."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

fault = sys.argv[1] if len(sys.argv) > 1 else None
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
X, y = torch.randn(24, 9, dtype=torch.float64).split([8, 1], 1)
one_device, net = nn.Linear(8, 1).double(), nn.Linear(8, 1).double()
net.load_state_dict(one_device.state_dict())
model = net if fault == "unwrapped" else DistributedDataParallel(net)
if fault == "own-seeds":
    torch.manual_seed(rank)
order = torch.randperm(24)
cut = 16 if fault == "uneven-shards" else 12
shard = order[cut:] if rank else order[:cut]

for trained, part in (one_device, order), (model, shard):
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for _ in range(20):
        loss = nn.functional.mse_loss(trained(X[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
difference = (net.weight - one_device.weight).norm()
percent = 100 * difference / one_device.weight.norm()
print(f"loss {loss:.3f}, weights off by {percent:.0f}%")
