"""How the measurements on a GPU take their time, and what names the machine."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import d2lmulti

ROOT = Path(__file__).resolve().parents[2]
GPU = "cuda"
Found = dict[str, Any]


def quartiles(times: list[float]) -> list[float]:
    """Return lower quartile, median, and upper quartile, in seconds."""
    return [float(q) for q in np.quantile(times, (0.25, 0.5, 0.75))]


def clock(work: Callable[[], Any], times: int = 15, warm: int = 3) -> list[float]:
    """Time calls on the host, each until the GPU has finished."""
    took = []
    for i in range(warm + times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if i >= warm:
            took.append(time.perf_counter() - began)
    return quartiles(took)


def events(work: Callable[[], Any], times: int = 15, warm: int = 3) -> list[float]:
    """Time calls by events in the GPU's own queue."""
    took = []
    for i in range(warm + times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        if i >= warm:
            took.append(begin.elapsed_time(end) / 1e3)
    return quartiles(took)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest difference over the largest value."""
    return float((got.double() - want).abs().max() / want.abs().max())


def machine() -> Found:
    """Name the GPU, and what drives it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    gpu = torch.cuda.get_device_properties(0)
    sources = hashlib.sha256()
    for path in sorted((ROOT / "d2lmulti").rglob("*.py")):
        sources.update(path.read_bytes())
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "version": d2lmulti.__version__,
        "sources": sources.hexdigest()[:12],
        "Python": platform.python_version(),
        "PyTorch": torch.__version__,
        "NumPy": version("numpy"),
        "cores": os.cpu_count(),
        "GPU": gpu.name,
        "memory_GiB": round(gpu.total_memory / 2**30),
        "capability": f"{gpu.major}.{gpu.minor}",
        "driver": said.split()[0],
        "CUDA": torch.version.cuda,
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
    }
