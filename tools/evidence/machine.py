"""Where, when and with what a table was made."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import d2lmulti

from . import ROOT

PACKAGES = {
    "NumPy": "numpy",
    "PyTorch": "torch",
    "MXNet": "mxnet",
    "Paddle": "paddlepaddle",
    "Horovod": "horovod",
}


def about_machine() -> dict[str, Any]:
    """Tell of the machine and of what is installed there; names no person or place."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    found: dict[str, Any] = {
        "processor": f"{_processor()}, {platform.machine()}",
        "cores": cores,
        "memory_GiB": _memory(),
        "system": _system(),
        "Python": platform.python_version(),
    }
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def about_now() -> dict[str, Any]:
    """Return the date, the version, and how busy the machine is."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "version": d2lmulti.__version__,
        "commit": _commit(),
        "load_before": load(),
    }


def load() -> float:
    """Return the load average of the last minute: how many processes wanted a core."""
    return round(os.getloadavg()[0], 2)


def busy(seconds: float = 5.0) -> float | None:
    """Return how many cores the machine keeps busy while this process sleeps.

    Unlike the load average, this forgets the table that was made before. None where
    the system does not tell.
    """
    try:
        before, began = _busy_seconds(), time.monotonic()
        time.sleep(seconds)
        return round((_busy_seconds() - before) / (time.monotonic() - began), 2)
    except OSError:
        return None


def _busy_seconds() -> float:
    """Return the seconds that all cores have worked, as Linux counts them."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:])
    ticks = user + nice + system + sum(interrupts[:3])
    return ticks / os.sysconf("SC_CLK_TCK")


def _commit() -> str:
    """Name the commit, and say whether the files it is made of have been changed."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    changed = _git("status", "--porcelain", "--", "d2lmulti", "tests", "tools")
    return f"{head} and changes" if changed else head


def _git(*command: str) -> str:
    try:
        done = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:  # no git here, as in an archive
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    """Give the processor's name as Linux knows it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line for line in file if line.startswith("model name")]
        return names[0].partition(":")[2].strip()
    except (OSError, IndexError):
        return platform.processor() or "a processor"


def _memory() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform(terse=True)
