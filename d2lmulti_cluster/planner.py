"""Rank the layouts of a model on a cluster by predicted throughput.

All divisors of the GPUs as data x tensor x pipeline, with ZeRO 0 to 3 (0 and 1 in a
pipeline), with and without recomputation, for micro-batches of powers of two. Layouts
that do not fit in memory are listed, too. Chapter: *cost_model*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from d2lmulti.checks import MAX_RANKS, check_count
from d2lmulti.errors import InvalidInput

from .convolution import ConvStep, conv_step
from .hardware import Cluster
from .layout import Layout
from .networks import ConvNet, Transformer
from .step_time import Step, step_time

MICRO_BATCHES = (1, 2, 4, 8, 16)  # sizes that are tried


@dataclass(frozen=True)
class Candidate:
    """A layout, its predicted step, and whether it fits in memory."""

    layout: Layout
    step: Step
    fits: bool

    def as_json(self) -> dict[str, object]:
        """Return the candidate as JSON values."""
        step = self.step
        return {
            "layout": str(self.layout), **vars(self.layout), "fits": self.fits,
            "step_seconds": step.seconds,
            "tokens_per_second": step.tokens / step.seconds,
            "tokens_per_second_per_gpu": step.tokens_per_gpu,
            "utilization": step.utilization, "memory_bytes": step.memory.needed,
        }  # fmt: skip


def layouts(
    model: Transformer, gpus: int, batch: int, per_node: int
) -> Iterator[Layout]:
    """Yield every layout of `gpus` GPUs, with tensor parallelism within a node."""
    check_count("gpus", gpus, max=MAX_RANKS)
    check_count("batch", batch, max=2**31)
    check_count("per_node", per_node, max=MAX_RANKS)
    for tensor in _divisors(gpus, min(per_node, model.heads)):
        for pipeline in _divisors(gpus // tensor, model.layers):
            data = gpus // tensor // pipeline
            if model.heads % tensor or batch % data:
                continue
            for size in MICRO_BATCHES:
                if batch // data % size:
                    continue
                for zero in _stages_of_zero(data, pipeline):
                    for recompute in ("none", "full"):
                        yield Layout(
                            data, tensor, pipeline, size, batch // data // size, zero,
                            recompute,
                        )  # fmt: skip


def plan_layouts(
    model: Transformer,
    cluster: Cluster,
    gpus: int,
    batch: int | None = None,
) -> list[Candidate]:
    """Rank all layouts: those that fit first, the fastest first.

    `batch`: sequences of a step; by default 4 per GPU and at least 256. Raises
    `InvalidInput` where no layout splits the batch.
    """
    check_count("gpus", gpus, max=MAX_RANKS)
    if batch is None:
        batch = max(4, -(-256 // gpus)) * gpus
    candidates = []
    for layout in layouts(model, gpus, batch, cluster.per_node):
        step = step_time(model, layout, cluster)
        fits = step.memory.needed <= cluster.device.memory
        candidates.append(Candidate(layout, step, fits))
    if not candidates:
        raise InvalidInput(
            f"expected a batch that splits over some of {gpus} GPUs, got {batch}; use "
            f"a multiple of {gpus}"
        )
    return sorted(candidates, key=lambda c: (not c.fits, c.step.seconds))


def plan_data_parallel(
    net: ConvNet, cluster: Cluster, gpus: int, batch: int | None = None
) -> list[ConvStep]:
    """Predict data parallelism on 1, 2, 4, ... and all GPUs; 32 images each by default.

    Raises `InvalidInput` for a batch that the GPUs do not divide.
    """
    check_count("gpus", gpus, max=MAX_RANKS)
    per_gpu = 32
    if batch is not None:
        check_count("batch", batch, max=2**31)
        per_gpu, rest = divmod(batch, gpus)
        if rest or not per_gpu:
            raise InvalidInput(
                f"expected a batch that {gpus} GPUs divide, got {batch}; use a multiple"
            )
    counts = [2**i for i in range(gpus.bit_length()) if 2**i < gpus]
    return [conv_step(net, n, per_gpu, cluster) for n in [*counts, gpus]]


def _stages_of_zero(data: int, pipeline: int) -> range:
    """Return the stages to try: 2 and 3 communicate for every micro-batch."""
    return range(1 if data == 1 else 2 if pipeline > 1 else 4)


def _divisors(n: int, largest: int) -> list[int]:
    return [i for i in range(1, min(n, largest) + 1) if n % i == 0]
