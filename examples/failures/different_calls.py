"""Let two ranks wait for each other in two different collectives."""

import faulthandler
import signal

import torch
import torch.distributed as dist

faulthandler.register(signal.SIGUSR1)  # for kill -USR1 PID


def train_step(x):
    dist.all_reduce(x)


def evaluate(x):
    dist.broadcast(x, src=0)


dist.init_process_group("gloo")
x = torch.ones(4)
if dist.get_rank() == 0:
    train_step(x)
else:
    evaluate(x)
