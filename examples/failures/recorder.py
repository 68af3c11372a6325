"""Print the last collectives of each rank, after the ranks have diverged."""

import json

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json

dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
if dist.get_rank() == 0:  # asynchronous: the program continues
    work = dist.all_reduce(x, async_op=True)
else:
    work = dist.broadcast(x, src=0, async_op=True)
for entry in json.loads(_dump_fr_trace_json())["entries"]:
    print(entry["collective_seq_id"], entry["profiling_name"])
