"""`doctor`: what is installed, which GPUs can compute, and what hinders the others."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import import_module

import click
import numpy as np

from ..backends import backend_name, backend_names, get_backend
from ..backends.protocol import Backend
from ..comm.devices import devices, with_place
from ..errors import BackendNotInstalled


@click.command()
def doctor() -> int:
    """Print what this machine has: frameworks, GPUs, the default backend."""
    click.echo(f"Python {platform.python_version()} on {platform.platform(terse=True)}")
    for line in driver_lines():
        click.echo(f"NVIDIA's driver: {line}")
    for name in backend_names():
        try:
            B = get_backend(name)
        except BackendNotInstalled as error:
            click.echo(f"{name:7} missing  {error}")
            continue
        version, count = sys.modules[name].__version__, B.gpu_count()
        places = (with_place(str(device), name) for device in devices(2, name))
        simulated = " (simulated)" * (count < 2)
        click.echo(
            f"{name:7} {version:11} GPUs: {count}; devices(2) gives "
            f"{', '.join(places)}{simulated}"
        )
        described = B.describe_gpus() if hasattr(B, "describe_gpus") else []
        for line in [*described, *trials(B)]:
            click.echo(f"        {line}")
    if line := horovod_line():
        click.echo(line)
    asked = os.environ.get("D2LMULTI_BACKEND")
    because = "from D2LMULTI_BACKEND" if asked else "D2LMULTI_BACKEND is not set"
    click.echo(f"default backend: {backend_name()} ({because})")
    try:
        get_backend()
    except BackendNotInstalled:
        click.echo(
            "It is missing: install it, or begin without a framework:\n"
            "python -m d2lmulti train --backend numpy"
        )
        return 1
    return 0


def driver_lines() -> list[str]:
    """List the GPUs that the driver sees, whether or not a framework can use them."""
    columns = "index,name,driver_version,memory.total,compute_cap,uuid"
    query = ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return []
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"nvidia-smi failed: {error}"]
    return (done.stdout or done.stderr or "no GPU").strip().splitlines()


def trials(B: Backend) -> list[str]:
    """Compute 1 + 1 on each GPU that the backend counts, and say how it went."""
    lines = []
    for i in range(B.gpu_count()):
        try:
            x = B.array(np.ones(2, "float32"), f"gpu:{i}")
            went = "computes" if (B.numpy(x + x) == 2).all() else "computes wrongly"
        except Exception as error:  # a framework's own, of any kind
            went = f"fails to compute: {str(error).strip().partition(chr(10))[0]}"
        lines.append(f"gpu:{i} {went}")
    return lines


def horovod_line() -> str:
    """Say whether Horovod, if it is there, was built to sum on GPUs."""
    for name in ("torch", "mxnet"):
        try:
            hvd = import_module(f"horovod.{name}")
        except Exception:  # noqa: S112 (not installed, or built for others)
            continue
        how = "by NCCL" if hvd.nccl_built() else "through the CPU"
        return f"horovod {sys.modules['horovod'].__version__:11} sums {how}"
    return ""
