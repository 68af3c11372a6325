"""What a backend may know of GPUs beside the functions of `protocol.py`.

That is `own_gpu` and `describe_gpus`. A backend without them gets the usual answers.
"""

from __future__ import annotations

from .protocol import Backend


def own_gpu(B: Backend, local_rank: int, local_size: int) -> int | None:
    """Number the GPU of one of `local_size` processes here; None if they share."""
    choose = getattr(B, "own_gpu", None)
    if choose is not None:
        return choose(local_rank, local_size)
    return local_rank if B.gpu_count() >= local_size else None


def describe_gpus(B: Backend) -> list[str]:
    """Say line by line what GPUs and NCCL it finds, and which GPU it cannot use."""
    describe = getattr(B, "describe_gpus", None)
    return describe() if describe is not None else []
