"""Join a group of two ranks, or report after a second why this failed."""

from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=1))
dist.barrier()  # nobody leaves while another rank still connects
print("both ranks are here")
