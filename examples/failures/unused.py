"""Leave one of two heads unused: unused.py [find]."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    """Two heads, of which the forward pass uses one."""

    def __init__(self):
        super().__init__()
        self.digit, self.letter = nn.Linear(8, 10), nn.Linear(8, 26)

    def forward(self, X):
        return self.digit(X)


dist.init_process_group("gloo")
find = "find" in sys.argv
torch.manual_seed(0)
net = DistributedDataParallel(TwoHeads(), find_unused_parameters=find)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X = torch.randn(2, 4, 8)[dist.get_rank()]
heads = [torch.empty(10, 8) for _ in range(2)]
for step in (1, 2):
    optimizer.zero_grad()
    net(X).square().mean().backward()
    optimizer.step()
    dist.all_gather(heads, net.module.digit.weight.detach())
    difference = (heads[0] - heads[1]).abs().max()
    print(f"step {step}: the ranks' used heads differ by {difference:.2f}")
