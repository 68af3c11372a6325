"""A machine that is switched off says no farewell; a roll call finds which one it was.

The cable between two network namespaces is cut, which is what the other machine sees of
it. The chapter *failures* shows the same with a stopped process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from d2lmulti.processes.spawn import environment, free_port

pytestmark = pytest.mark.cluster

WORKER = """
import sys
from datetime import timedelta
import torch.distributed as dist

address, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
dist.barrier()
print("together", flush=True)
sys.stdin.readline()
try:
    dist.monitored_barrier(timeout=timedelta(seconds=2))
except RuntimeError as error:
    print(error, flush=True)
sys.stdin.readline()
"""


@pytest.mark.torch
def test_the_others_notice_by_a_time_out(load: Callable, machines: list[Any]) -> None:
    load("torch")
    if not machines[0].prefix:
        pytest.skip("needs the right to make network namespaces")
    address = f"tcp://{machines[0].address}:{free_port()}"
    workers = [
        subprocess.Popen(
            [*machine.prefix, sys.executable, "-c", WORKER, address, str(rank)],
            env=environment() | machine.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        for rank, machine in enumerate(machines)
    ]  # fmt: skip
    try:
        for worker in workers:
            assert worker.stdout and worker.stdout.readline() == "together\n"
        cut = [*machines[1].prefix, "ip", "link", "set", "cable0", "down"]
        subprocess.run(cut, check=True)
        said, _ = workers[0].communicate("\n\n", timeout=60)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert "Rank 1 failed to pass monitoredBarrier in 2000 ms" in said
    assert "Timed out waiting" in said and "Connection" not in said
