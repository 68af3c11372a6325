"""Give rank 0 three batches and rank 1 two: uneven.py [validate | join]."""

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
        net(batch).sum().backward()
        done += 1
print(done, "batches")
if "validate" in sys.argv:
    dist.barrier()  # or another collective
