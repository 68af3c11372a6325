"""Wrap a model that rank 1 defines with another shape: versions.py [compare]."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
if "compare" in sys.argv:
    ours = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "script": ["5f3c", "9a01"][rank],  # a digest of the file
    }
    all_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(all_ranks, ours)
    for name, value in ours.items():
        found = [other[name] for other in all_ranks]
        if any(other != value for other in found):
            print(name, "differs:", found)
else:
    DistributedDataParallel(torch.nn.Linear(8, 1 + rank))
