"""The time of a convolutional network on one GPU, on many, and in a pipeline.

Operations of an image at the speed of matrix multiplications, its activations at memory
bandwidth, and gradients all-reduced during the backward pass.
Chapter: *cost_model*.
"""

from __future__ import annotations

from dataclasses import dataclass

from d2lmulti.checks import MAX_RANKS, check_count

from .hardware import Cluster
from .layer_time import USUAL_SHAPE, memory_seconds
from .nccl import nccl_seconds
from .networks import ConvNet

# An activation of 4 bytes is written and read forward; read, and its gradient written
# and read, backward.
PASSES = 5
BUCKET = 25 * 2**20  # bytes of gradients per all-reduce (PyTorch, DDP)


@dataclass(frozen=True)
class ConvStep:
    """One step of data parallelism, in seconds."""

    compute: float
    exposed: float  # communication that is not hidden
    images: int

    @property
    def seconds(self) -> float:
        """Return the seconds of the whole step."""
        return self.compute + self.exposed

    @property
    def images_per_second(self) -> float:
        """Return the throughput of all GPUs together."""
        return self.images / self.seconds


def conv_step(
    net: ConvNet, gpus: int, batch_per_gpu: int, cluster: Cluster
) -> ConvStep:
    """Predict a synchronous step in float32, with all-reduces during the backward pass.

    The backward pass is two thirds of the computation; it does not hide the last
    bucket.
    Raises `InvalidInput` for no GPUs and no images.

    >>> from d2lmulti_cluster.networks import get_network
    >>> from d2lmulti_cluster.presets import get_cluster
    >>> net, cluster = get_network("resnet-152"), get_cluster("p2.16xlarge")
    >>> conv_step(net, 1, 32, cluster).exposed
    0.0
    """
    check_count("gpus", gpus, max=MAX_RANKS)
    check_count("batch_per_gpu", batch_per_gpu, max=2**31)
    device = cluster.device
    rate = device.flops * device.matmul_share * USUAL_SHAPE
    moved = PASSES * 4.0 * net.activations * batch_per_gpu
    compute = 3 * net.flops * batch_per_gpu / rate
    compute += memory_seconds(device, moved, 3 * 3 * net.layers)
    gradients = 4.0 * net.parameters
    buckets = max(1, round(gradients / BUCKET))
    seconds = nccl_seconds("allreduce", gradients / buckets, gpus, cluster)
    exposed = max(seconds, buckets * seconds - compute * 2 / 3) if gpus > 1 else 0.0
    return ConvStep(compute, exposed, gpus * batch_per_gpu)


def pipeline_rate(stages: int, micro_batches: int, kept: int = 0) -> float:
    """Return the speed-up of a GPipe pipeline of equal stages over one device.

    Every micro-batch but the last `kept` ones is recomputed in its backward pass, which
    is a third more work. The bubble takes (stages - 1) micro-batches.

    >>> round(pipeline_rate(4, 32), 2), pipeline_rate(1, 1, kept=1)
    (2.74, 1.0)
    """
    check_count("stages", stages, max=MAX_RANKS)
    check_count("micro_batches", micro_batches, max=2**31)
    check_count("kept", kept, min=0, max=micro_batches)
    work = 1 + (1 - kept / micro_batches) / 3
    return stages * micro_batches / (micro_batches + stages - 1) / work
