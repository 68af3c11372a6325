"""Times of one GPU's memory and arithmetic: copies, streams, products of matrices."""

from __future__ import annotations

import time
from functools import partial

import torch

from .gpu_clock import GPU, Found, clock, error, events, quartiles


def product() -> Found:
    """Multiply (10000, 100) by (100, 100000), and fetch the 4 GB."""
    left, right = torch.randn(10_000, 100), torch.randn(100, 100_000)
    a, b = left.to(GPU), right.to(GPU)
    out = torch.empty(10_000, 100_000, device=GPU)
    want = a[:200].double() @ b.double()
    found: Found = {}
    for name, tf32 in (("float32", False), ("TF32", True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        calls = []
        for _ in range(20):
            torch.cuda.synchronize()
            began = time.perf_counter()
            torch.mm(a, b, out=out)
            calls.append(time.perf_counter() - began)
        done = clock(lambda: torch.mm(a, b, out=out))
        found[name] = {"call returns": quartiles(calls), "done": done}
        found[name]["error"] = error(out[:200], want)
    torch.backends.cuda.matmul.allow_tf32 = False
    kept, pinned = torch.zeros_like(out, device="cpu"), out.cpu().pin_memory()
    found["send both inputs"] = clock(lambda: (left.to(GPU), right.to(GPU)))
    found["fetch to new memory"] = clock(lambda: out.cpu(), 3, 0)
    found["fetch to kept memory"] = clock(lambda: kept.copy_(out), 5)
    found["fetch to pinned memory"] = clock(
        lambda: pinned.copy_(out, non_blocking=True), 5
    )
    return found


def copies() -> Found:
    """Copy between host and GPU, and within the GPU, into memory that is there."""
    found: Found = {}
    for size in (2**10, 2**20, 2**26):
        host, there = torch.zeros(size // 4), torch.zeros(size // 4, device=GPU)
        pinned, other = host.pin_memory(), torch.empty_like(there)
        ways = {
            "to the GPU": (there, host),
            "to the GPU, pinned": (there, pinned),
            "from the GPU": (host, there),
            "from the GPU, pinned": (pinned, there),
            "within the GPU": (other, there),
        }
        for name, (target, source) in ways.items():
            copy = partial(target.copy_, source, non_blocking=True)
            found.setdefault(name, {})[size] = clock(copy, 30)
    return found


def overlap() -> Found:
    """Send eight batches of 64 MiB, compute on each; in one stream and in two."""
    plain = [torch.randn(4096, 4096) for _ in range(8)]
    pinned = [x.pin_memory() for x in plain]
    weights = torch.randn(4096, 4096, device=GPU)

    def compute(x: torch.Tensor) -> None:
        for _ in range(2):
            x = (x @ weights) * 1e-3

    def one_stream(batches: list[torch.Tensor]) -> None:
        for x in batches:
            compute(x.to(GPU, non_blocking=True))

    side = torch.cuda.Stream()

    def send(x: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(side):
            return x.to(GPU, non_blocking=True)

    def two_streams() -> None:
        main = torch.cuda.current_stream()
        following = send(pinned[0])
        for x in [*pinned[1:], None]:
            main.wait_stream(side)
            here = following
            here.record_stream(main)
            if x is not None:
                following = send(x)
            compute(here)

    x = plain[0].to(GPU)
    return {
        "ordinary memory": clock(lambda: one_stream(plain)),
        "pinned memory, one stream": clock(lambda: one_stream(pinned)),
        "pinned memory, two streams": clock(two_streams),
        "computing alone": clock(lambda: [compute(x) for _ in plain]),
        "copying alone": clock(lambda: [x.copy_(y, non_blocking=True) for y in pinned]),
    }


def matrices() -> Found:
    """Multiply square matrices of 8192 in four precisions: Tflop/s, and the error."""
    a, b = (torch.randn(8192, 8192, device=GPU) for _ in range(2))
    want = a[:64].double() @ b.double()
    found: Found = {}
    for name in ("float64", "float32", "TF32", "bfloat16"):
        torch.backends.cuda.matmul.allow_tf32 = name == "TF32"
        x, y = (t.to(getattr(torch, name, torch.float32)) for t in (a, b))
        seconds = events(lambda x=x, y=y: x @ y, 8)
        found[name] = {
            "Tflop/s": 2 * 8192**3 / seconds[1] / 1e12,
            "error": error((x @ y)[:64], want),
        }
    torch.backends.cuda.matmul.allow_tf32 = False
    return found
