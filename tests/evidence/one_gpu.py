"""What one GPU does: what the pages say of GPUs, and tests and chapters on it.

    make evidence ONLY=one_gpu      # four minutes, with PyTorch and one NVIDIA GPU

First what is timed, alone; then the rest, beside the unit tests of the backend torch
and the chapters. A measurement that fails ends the command; failed tests are recorded.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import d2lmulti
from evidence import strategies as tried

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "chapters" / "measured" / "one_gpu.json"
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


def last_bits() -> Found:
    """Count elements, of 10,000, that differ from the CPU's; errors of gradients."""
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


def lenet_step(batch: int) -> Callable[[], Any]:
    """Return a training step of the library on the GPU."""
    B, (gpu,) = d2lmulti.get_backend("torch"), d2lmulti.devices(1)
    rng, model = np.random.default_rng(0), d2lmulti.get_model("lenet")
    start = [B.array(p.astype("float32")) for p in model.initial(rng)]
    params = [d2lmulti.get_params(start, gpu)]
    X = B.array(rng.normal(size=(batch, 1, 28, 28)).astype("float32"), gpu)
    y = B.array(np.arange(batch) % 10, gpu)
    return lambda: d2lmulti.train_batch(X, y, params, [gpu], 0.01)


def watched(work: Callable[[], Any], seconds: float = 2.0) -> Found:
    """Repeat work while nvidia-smi reads utilization and power, five times a second."""
    work()
    query = "--query-gpu=utilization.gpu,power.draw"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as smi:
        until, steps = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            work()
            torch.cuda.synchronize()
            steps += 1
        smi.terminate()
        said = smi.communicate()[0]
    rows = [[float(x) for x in line.split(",")] for line in said.splitlines()[4:]]
    percent, watts = np.median([r for r in rows if len(r) == 2], axis=0)
    return {"steps/s": steps / seconds, "percent": percent, "watts": watts}


def utilization() -> Found:
    """Read what nvidia-smi shows of loops whose work is known."""
    a = torch.randn(8192, 8192, device=GPU, dtype=torch.bfloat16)

    def after_loading() -> None:
        time.sleep(0.02)
        torch.cuda._sleep(4_000_000)  # 2 ms of one thread that waits

    return {
        "a kernel of 2 ms after 20 ms of loading": watched(after_loading),
        "LeNet, 32 images a step": watched(lenet_step(32)),
        "LeNet, 8192 images a step": watched(lenet_step(8192)),
        "products of bfloat16 matrices": watched(lambda: a @ a),
        "one thread that waits": watched(lambda: torch.cuda._sleep(20_000_000)),
    }


def launches() -> Found:
    """Profile one step; time PyTorch's own step, eagerly and as a CUDA graph."""
    found: Found = {}
    for batch in (32, 8192):
        step = lenet_step(batch)
        seconds = clock(step)
        with torch.profiler.profile(acc_events=True) as trace:
            step()
            torch.cuda.synchronize()
        cuda = torch.autograd.DeviceType.CUDA
        kernels = [e for e in trace.events() if e.device_type == cuda]
        found[f"library, {batch}"] = {
            "kernels": len(kernels),
            "kernel seconds": sum(e.time_range.elapsed_us() for e in kernels) / 1e6,
            "step": seconds,
        }
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 20, 3), torch.nn.ReLU(), torch.nn.AvgPool2d(2),
        torch.nn.Conv2d(20, 50, 5), torch.nn.ReLU(), torch.nn.AvgPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(800, 128), torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    ).to(GPU)  # fmt: skip
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, fused=True)
    X, y = torch.randn(32, 1, 28, 28, device=GPU), torch.arange(32, device=GPU) % 10

    def eager() -> None:
        sgd.zero_grad(set_to_none=False)
        F.cross_entropy(net(X), y).backward()
        sgd.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what a capture asks for
        for _ in range(5):
            eager()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    found["PyTorch, 32"], found["CUDA graph, 32"] = clock(eager), clock(graph.replay)
    return found


HIDDEN, HEADS = 2048, 16


class Block(torch.nn.Module):
    """A transformer block, with attention written out or PyTorch's own."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        h, self.p = HIDDEN, dropout
        self.dropout = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()
        self.norm1, self.norm2 = torch.nn.LayerNorm(h), torch.nn.LayerNorm(h)
        self.qkv, self.out = torch.nn.Linear(h, 3 * h), torch.nn.Linear(h, h)
        self.up, self.down = torch.nn.Linear(h, 4 * h), torch.nn.Linear(4 * h, h)

    def forward(self, x: torch.Tensor, fused: bool = True) -> torch.Tensor:
        b, s, h = x.shape
        split = self.qkv(self.norm1(x)).view(b, s, 3, HEADS, h // HEADS)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        if fused:
            z = F.scaled_dot_product_attention(
                q, k, v, dropout_p=self.p, is_causal=not self.p
            )
        else:
            scores = torch.softmax(q @ k.transpose(-1, -2) / (h // HEADS) ** 0.5, -1)
            z = self.dropout(scores) @ v
        z = self.out(z.transpose(1, 2).reshape(b, s, h))
        x = x + self.dropout(z)
        z = self.down(F.gelu(self.up(self.norm2(x))))
        return x + self.dropout(z)


def activations() -> Found:
    """Measure what a block keeps for its backward pass, in bfloat16: bytes, seconds."""
    found: Found = {}
    for b, s in ((4, 1024), (1, 4096)):
        block = Block(dropout=0.1).to(GPU, torch.bfloat16)
        x = torch.randn(b, s, HIDDEN, device=GPU, dtype=torch.bfloat16)
        x.requires_grad_()
        linear = 34 * s * b * HIDDEN
        row: Found = {
            "formula": linear + 5 * HEADS * s * s * b,
            "without scores": linear,
        }
        ways = {
            "scores kept": partial(block, x, fused=False),
            "fused attention": partial(block, x),
            "recomputed": partial(checkpoint, block, x, use_reentrant=False),
        }
        for name, forward in ways.items():
            forward().sum().backward()
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            y = forward()
            kept = torch.cuda.memory_allocated() - before - 2 * y.numel()
            del y

            def step(forward: Callable[[], torch.Tensor] = forward) -> None:
                forward().sum().backward()

            row[name] = {"bytes": kept, "seconds": events(step, 10)}
        found[f"{b} sequences of {s} tokens"] = row
    return found


def decoder() -> Found:
    """Train a decoder of 0.47 billion weights in bfloat16, by micro-batch."""
    layers, tokens, words = 8, 2048, 32_000
    blocks = torch.nn.Sequential(*(Block(dropout=0.0) for _ in range(layers)))
    embedding, head = (
        torch.nn.Embedding(words, HIDDEN),
        torch.nn.Linear(HIDDEN, words, bias=False),
    )
    net = torch.nn.Sequential(embedding, blocks, head).to(GPU, torch.bfloat16)
    adam = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    used = sum(p.numel() for part in (blocks, head) for p in part.parameters())
    found: Found = {"weights": used, "layers": layers, "tokens": tokens}
    for batch in (1, 2, 4, 8):
        ids = torch.randint(0, words, (batch, tokens), device=GPU)

        def step(ids: torch.Tensor = ids) -> None:
            F.cross_entropy(net(ids).view(-1, words).float(), ids.view(-1)).backward()
            adam.step()
            adam.zero_grad()

        seconds = events(step, 8)
        # 6 operations a weight and token; causal attention has half of 12 L s h more.
        work = batch * tokens * (6 * used + 6 * layers * tokens * HIDDEN)
        found[f"batch {batch}"] = {
            "seconds": seconds,
            "Tflop/s": work / seconds[1] / 1e12,
        }
    return found


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


TIMED = (
    machine, product, copies, overlap, matrices, last_bits, utilization, launches,
    activations, decoder,
)  # fmt: skip


def start_tests() -> dict[str, subprocess.Popen[str]]:
    """Start the unit tests of the backend torch, and the chapters."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    units = ["-n6", "--dist=loadgroup", "-m", "torch and not cluster"]
    pages = ["-n9", "--dist=loadfile", "--no-loadscope-reorder", "--nbval"]
    env = os.environ | {
        "OMP_NUM_THREADS": "1", "D2LMULTI_BACKEND": "torch", "D2LMULTI_QUIET": "1",
        "D2LMULTI_SETUP": "torch",
    }  # fmt: skip
    commands = {
        "cells of chapters": [*pytest, *pages, "chapters"],
        "unit tests": [*pytest, *units, "tests/backends"],
    }
    started = {}
    for name, command in commands.items():
        started[name] = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
        )
    return started


def results(started: dict[str, subprocess.Popen[str]]) -> Found:
    """Wait for the tests; count them, and name those that failed."""
    found: Found = {}
    for name, process in started.items():
        out = process.communicate()[0]
        last = out.splitlines()[-1]
        counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (\w+)", last)}
        found[name] = {k: counts.get(k, 0) for k in ("passed", "failed", "skipped")}
        failed = re.findall(r"^FAILED (.+?)(?: - .*)?$", out, re.MULTILINE)
        found[name]["names"] = failed
        print(out[-6000:] if failed else last, flush=True)
    return found


def main() -> None:
    """Measure and test, and write the record after each step."""
    if not torch.cuda.is_available():
        sys.exit("expected a GPU that PyTorch can use; see `python -m d2lmulti doctor`")
    record: Found = {}

    def keep(measure: Callable[..., Found], *given: Any) -> None:
        began = time.monotonic()
        record[measure.__name__.replace("_", " ")] = measure(*given)
        print(f"{time.monotonic() - began:6.1f} s  {measure.__name__}", flush=True)
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")

    for measure in TIMED:
        keep(measure)
    started = start_tests()
    for measure in (strategies, messages):
        keep(measure)
    keep(results, started)


if __name__ == "__main__":
    main()
