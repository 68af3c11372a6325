"""Save, fail in a second save, and load: checkpoint.py FILE [every-rank]."""

import io
import os
import sys
from contextlib import suppress

import torch
import torch.distributed as dist

path, every_rank = sys.argv[1], "every-rank" in sys.argv
content = io.BytesIO()
torch.save(torch.ones(100_000), content)

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    with open(path + ".new", "wb") as file:
        file.write(content.getvalue())
    os.replace(path + ".new", path)
dist.barrier()
if rank == 1:
    if every_rank:  # a little late, and it fails halfway
        with open(path, "wb") as file:
            file.write(content.getvalue()[:200_000])
    os.abort()
with suppress(RuntimeError):
    dist.barrier()  # until rank 1 has failed
print("loaded", len(torch.load(path)), "weights")
