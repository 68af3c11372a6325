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
net = DistributedDataParallel(TwoHeads(), find_unused_parameters=find)
for _ in range(2):
    net(torch.ones(4, 8)).sum().backward()
print("two steps")
