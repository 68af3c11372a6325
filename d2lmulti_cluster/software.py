"""What a training program does besides its products: bytes, kernels and calls.

Counted in the sources of three programs, per layer. They differ in what they fuse, in
what they let run at the same time, and in how often the host is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

MiB = 2**20
# One call of PyTorch without a graph costs the host 5 to 25 us (published
# measurements); what many calls take together follows from the mean.
CALL = 15e-6


@dataclass(frozen=True)
class Software:
    """One program. Bytes are a token's, times three widths: `hidden` over the share of
    sequence parallelism, `hidden` and `up` over the share of tensor parallelism.
    """

    name: str
    forward_bytes: tuple[float, float, float]
    backward_bytes: tuple[float, float, float]
    kernels: tuple[int, int]  # of those operations: forward, backward
    calls: tuple[int, int]  # of the host, one GPU a layer
    split_calls: tuple[int, int]  # of the host, a layer split over several
    attention: Literal["flash", "cudnn", "unfused"]
    overlap: Literal["own shard", "chunks", "weights", "none"]  # of tensor parallelism
    gradient_bytes: int  # in which gradients are summed
    accumulate_bytes: int  # read and written a weight after each micro-batch
    bucket: float | None  # bytes of 16-bit gradients; None: all in one
    overlap_data: bool  # gradients are summed while the last backward pass runs
    shards_wait: bool  # ... but those of ZeRO 1 are waited for
    cut_by_cost: bool  # stages by cost, head included; else by layers
    handshakes: int  # messages that the host waits for, before an activation is sent


# Counted in llama.py, functional.py, gradient_accumulator.py and zero.py (nanotron).
# ZeRO 1 copies each bucket's shards back on a stream of its own. All streams share one
# queue (CUDA_DEVICE_MAX_CONNECTIONS=1, nanotron's README), so the next product stands
# behind that copy, and the copy waits for the sum: nothing runs beside it.
NANOTRON = Software(
    "nanotron", (20, 36, 5), (24, 40, 13), (20, 24), (75, 150), (120, 200),
    "flash", "own shard", 4, 10, 25 * MiB, True, True, True, 2,
)  # fmt: skip
# Narayanan et al. (2021): fused bias, dropout and GELU; unfused attention, no overlap.
MEGATRON_2021 = Software(
    "megatron 2021", (22, 12, 4), (26, 12, 8), (12, 16), (24, 30), (24, 30),
    "unfused", "none", 2, 10, None, False, False, False, 0,
)  # fmt: skip
# Korthikanti et al. (2022): the collective of a layer's way back runs beside the
# product for its weights, into whose sum the gradient is added.
MEGATRON_2022 = replace(
    MEGATRON_2021, name="megatron 2022", overlap="weights", accumulate_bytes=8
)
# Megatron-Core with --tp-comm-overlap, --overlap-grad-reduce, --overlap-param-gather.
MEGATRON_CORE = Software(
    "megatron-core", (22, 12, 4), (26, 12, 8), (12, 16), (24, 30), (24, 30),
    "cudnn", "chunks", 4, 8, None, True, False, False, 0,
)  # fmt: skip
