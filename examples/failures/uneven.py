"""Give rank 0 three batches and rank 1 two.

uneven.py [barrier | all-reduce | join]
"""

import faulthandler
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

faulthandler.register(signal.SIGUSR1)
dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(8, 1))
examples = torch.ones(20 - 4 * dist.get_rank(), 8)
done = 0
with net.join(enable="join" in sys.argv):
    for batch in examples.split(8):
        net.zero_grad()
        net(batch).mean().backward()
        done += 1
print(done, "batches, gradient of the bias:", net.module.bias.grad.item())
if "barrier" in sys.argv:
    dist.barrier()
if "all-reduce" in sys.argv:  # nine elements, as many as the gradient
    hits = torch.ones(9)
    dist.all_reduce(hits)
    print("sum over the ranks:", hits[0].item())
