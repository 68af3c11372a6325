"""Stop rank 1, and let rank 0 find out who is missing."""

import os
import signal
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.monitored_barrier(timeout=timedelta(seconds=0.5))
