"""A module of one's own in our buckets, beside PyTorch's DistributedDataParallel.

    python -m benchmarks.modules

Two processes over gloo take turns: one step of ours, one of DDP, with buckets of the
same size. Printed is the ratio of the medians, and that of the best.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from d2lmulti.parallel.buckets import GradientBuckets
from d2lmulti.processes.launcher import launch
from d2lmulti.processes.process_group import started

from .engines import pin

LAYERS, WIDTH, EXAMPLES, REPEATS = 16, 512, 64, 30  # a layer has 1 MB


def step_of(net: torch.nn.Module, bucket_mb: float, ddp: bool) -> Callable[[], None]:
    """Make a training step of a module, by DDP or in our buckets."""
    params = list(net.parameters())
    optimizer = torch.optim.SGD(params, 0.01)
    X = torch.ones(EXAMPLES, WIDTH)
    if ddp:
        net = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=bucket_mb)
    else:
        buckets = GradientBuckets([params], int(bucket_mb * 2**20), "native", op="mean")

    def step() -> None:
        optimizer.zero_grad()
        loss = net(X).square().mean()
        if ddp:
            loss.backward()
        else:
            with buckets.reduce():
                loss.backward()
        optimizer.step()

    return step


def measure(bucket_mb: float) -> dict[str, list[float]]:
    """Time both in turn; called in each process."""
    group = started()
    assert group is not None
    pin(group.local_ranks[0])
    torch.manual_seed(0)
    steps = {}
    for name in ("ours", "DDP"):
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        steps[name] = step_of(torch.nn.Sequential(*layers), bucket_mb, name == "DDP")
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repetition in range(REPEATS + 3):
        for name, step in steps.items():
            torch.distributed.barrier()
            began = time.perf_counter()
            step()
            if repetition > 2:  # DDP makes its buckets anew after the first
                seconds[name].append(time.perf_counter() - began)
    return seconds


def main() -> None:
    """Print a line for each size of buckets."""
    for bucket_mb in (1, 4, 25):
        seconds = launch(measure, 2, bucket_mb, engine="torch", timeout=300).values[0]
        middle, best = (
            [1e3 * of(seconds[name]) for name in ("ours", "DDP")]
            for of in (statistics.median, min)
        )
        print(
            f"buckets of {bucket_mb:2} MB: ours {middle[0]:.1f} ms, DDP {middle[1]:.1f}"
            f" ms, ratio {middle[0] / middle[1]:.2f} (best {best[0] / best[1]:.2f})"
        )


if __name__ == "__main__":
    main()
