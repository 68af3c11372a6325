"""Times and memory of training on one GPU: LeNet, a transformer block, a decoder."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import d2lmulti

from .gpu_clock import GPU, Found, clock, events


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
