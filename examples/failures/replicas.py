"""Compare the replicas before and after a step: replicas.py [unwrapped]."""

import hashlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def replicas_agree(net):
    weights = [p.detach().numpy().tobytes() for p in net.parameters()]
    digest = hashlib.sha256(b"".join(weights)).hexdigest()
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    return len(set(digests)) == 1


dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
model = net if "unwrapped" in sys.argv else DistributedDataParallel(net)
X = torch.randn(2, 8)[dist.get_rank()]
before = replicas_agree(net)
model(X).sum().backward()
torch.optim.SGD(net.parameters(), lr=0.1).step()
print(f"before {before}, after a step {replicas_agree(net)}")
