"""What one GPU does: what the pages say of GPUs, and tests and chapters on it.

    make evidence ONLY=one_gpu      # four minutes, with PyTorch and one NVIDIA GPU

First what is timed, alone, into a record of its own; then the rest, beside the unit
tests of the backend torch and the chapters. A measurement that fails ends the command,
and so do tests that did not run; tests that fail are recorded.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import d2lmulti

from . import strategies as tried
from .gpu_clock import GPU, ROOT, Found, error, machine
from .gpu_memory import copies, matrices, overlap, product
from .gpu_training import activations, decoder, launches, utilization

RECORD = ROOT / "chapters" / "measured" / "one_gpu.json"
TIMES, BEFORE = (RECORD.with_name(f"one_gpu_times{n}.json") for n in ("", "_again"))
TIMED = (
    machine, product, copies, overlap, matrices, utilization, launches, activations,
    decoder,
)  # fmt: skip


def strategies() -> Found:
    """Compare every strategy, on devices simulated on the GPU, with one device."""
    found, worst = 0, 0.0
    for way, options in tried.ways().items():
        mesh = options.get("mesh")
        for n in [int(np.prod(list(mesh.values())))] if mesh else [2, 4]:
            want = tried.one_device(tried.model_of(way), "torch")
            for weights in tried.trained(way, n, "torch"):
                worst = max(worst, tried.difference(weights, want))
            found += 1
    return {"runs": found, "largest difference": worst}


def last_bits() -> Found:
    """Count elements, of 10,000, that differ from the CPU's; errors of gradients."""
    torch.manual_seed(0)
    x = torch.randn(10_000, device=GPU)
    host, model = x.cpu(), d2lmulti.get_model("lenet")
    n = torch.tensor(29.0, device=GPU)
    rng = np.random.default_rng(5)
    start = model.initial(rng)
    X, y = rng.normal(size=(29, 1, 28, 28)), torch.tensor(rng.integers(0, 10, 29))

    def gradients(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        B = d2lmulti.get_backend("torch")
        params = [
            torch.tensor(p, dtype=dtype, device=device, requires_grad=True)
            for p in start
        ]
        logits = model.forward(B, params, torch.tensor(X, dtype=dtype, device=device))
        F.cross_entropy(logits, y.to(device), reduction="sum").backward()
        return [p.grad.cpu() for p in params]

    torch.backends.cudnn.allow_tf32 = False
    exact = gradients("cpu", torch.float64)
    off = {}
    for name, device, on in (("CPU", "cpu", True), ("GPU", GPU, True),
                             ("GPU without cuDNN", GPU, False)):  # fmt: skip
        torch.backends.cudnn.enabled = on
        got = gradients(device, torch.float32)
        off[name] = [error(g, want) for g, want in zip(got, exact, strict=True)]
    torch.backends.cudnn.enabled = torch.backends.cudnn.allow_tf32 = True
    return {
        "x / 29": int(((x / 29).cpu() != host / 29).sum()),
        "x / n, n on the GPU": int(((x / n).cpu() != host / 29).sum()),
        "exp": int((x.exp().cpu() != host.exp()).sum()),
        "x * 0.5 + x": int(((x * 0.5 + x).cpu() != host * 0.5 + host).sum()),
        "float32 gradients of LeNet": off,
    }


ASSERT = """\
import torch
x = torch.arange(3, device="cuda")[torch.tensor([7], device="cuda")]
print("the call returned")
for what in (x.tolist, lambda: torch.ones(1, device="cuda")):
    try:
        what()
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""
MEMORY = """\
import torch
torch.cuda.set_per_process_memory_fraction(0.05, 0)
try:
    torch.empty(2**33, dtype=torch.uint8, device="cuda:0")
except torch.cuda.OutOfMemoryError as error:
    print(error)
"""
SAME_GPU = """\
import torch
import torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
x = torch.ones(4, device="cuda")
dist.all_reduce(x)
print(x.tolist())
dist.destroy_process_group()
"""


def messages() -> Found:
    """Make three failures of a GPU, and one of NCCL, and keep what is said."""

    def said(code: str, ranks: int = 0) -> list[str]:
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        launched = [*launcher, f"--nproc-per-node={ranks}"] if ranks else []
        path = Path(f"{RECORD}.py")
        path.write_text(code, "utf-8")
        try:
            command = [sys.executable, *launched, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        finally:
            path.unlink()
        lines = (done.stdout + done.stderr).splitlines()
        if not ranks:
            return lines[:12]
        marks = ("Duplicate", "ncclInvalidUsage", "[1.0")
        return sorted({line.strip() for line in lines if any(m in line for m in marks)})

    return {
        "an index out of range": said(ASSERT),
        "8 GiB with a cap of 5%": said(MEMORY),
        "NCCL, one rank": said(SAME_GPU, 1),
        "NCCL, two ranks on one GPU": said(SAME_GPU, 2),
    }


def start_tests() -> dict[str, subprocess.Popen[str]]:
    """Start the unit tests of the backend torch, and the chapters."""
    # Only our own plugins: others that are installed may warn, which is an error here.
    plugins = ("xdist", "timeout", "nbval", "hypothesispytest")
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    pytest += [f"-p{plugin}" for plugin in plugins]
    units = ["-n6", "--dist=loadgroup", "-m", "torch and not cluster"]
    pages = ["-n9", "--dist=loadfile", "--no-loadscope-reorder", "--nbval"]
    env = os.environ | {
        "OMP_NUM_THREADS": "1", "D2LMULTI_BACKEND": "torch", "D2LMULTI_QUIET": "1",
        "D2LMULTI_SETUP": "torch", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # fmt: skip
    commands = {
        "cells of chapters": [*pytest, *pages, "chapters"],
        "unit tests": [*pytest, *units, "tests/backends"],
    }
    return {
        name: subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
        )
        for name, command in commands.items()
    }


def results(started: dict[str, subprocess.Popen[str]]) -> Found:
    """Wait for the tests; count them, and name those that failed."""
    found: Found = {}
    for name, process in started.items():
        out = process.communicate()[0]
        last = (out.splitlines() or [""])[-1]
        counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (\w+)", last)}
        found[name] = {k: counts.get(k, 0) for k in ("passed", "failed", "skipped")}
        failed = re.findall(r"^FAILED (.+?)(?: - .*)?$", out, re.MULTILINE)
        found[name]["names"] = failed
        print(last if process.returncode == 0 else out[-6000:], flush=True)
    if idle := [
        n for n, process in started.items() if process.returncode not in (0, 1)
    ]:
        sys.exit(f"expected pytest to run the {' and '.join(idle)}; it ended as above")
    return found


def keep(path: Path, measurements: Iterable[Callable[[], Found]]) -> None:
    """Make a record of measurements, and write it after each one."""
    record: Found = {}
    for measure in measurements:
        began = time.monotonic()
        name = measure.__name__.replace("_", " ")
        record[name] = measure()
        print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)
        path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def main() -> None:
    """Measure, then test, each into its record."""
    if not torch.cuda.is_available():
        sys.exit("expected a GPU that PyTorch can use; see `python -m d2lmulti doctor`")
    if TIMES.exists():
        TIMES.replace(BEFORE)  # the page compares both runs
    keep(TIMES, TIMED)
    started = start_tests()

    def tests() -> Found:
        return results(started)

    keep(RECORD, (machine, last_bits, strategies, messages, tests))


if __name__ == "__main__":
    main()
