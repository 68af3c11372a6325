"""Run rank 1 out of memory, unless the work has parts: memory.py [PARTS]."""

import resource
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:  # may take 256 MB more than it has
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 256 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

parts = int(sys.argv[1]) if len(sys.argv) > 1 else 1
total = torch.zeros(())
for _ in range(parts):
    activations = torch.ones(2**27 // parts)  # 512 MB in all
    total += activations.sum()
    del activations
dist.all_reduce(total)
print("total", total.item())
