"""Shapes of known networks, and properties of the programs that train them.

Transformers by layers and widths, convolutional networks by operations, parameters and
activations of one image: the papers' and model cards' numbers. Programs by the bytes,
kernels and calls per layer that were counted in their sources; they differ in what they
fuse and overlap, and in how often the host is involved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from d2lmulti.checks import check_choice, check_count, check_number

from .comparison import Row, read_data


@dataclass(frozen=True)
class Transformer:
    """A decoder: `gated` has three matrices in its MLP (SwiGLU), else two."""

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocabulary: int
    sequence: int
    gated: bool = True
    tied: bool = False  # one matrix for embedding and head
    kv_heads: int = 0  # 0: as many as heads

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "ffn", "vocabulary", "sequence"):
            check_count(name, getattr(self, name), max=2**40)
        check_count("kv_heads", self.kv_heads, min=0, max=self.heads)

    @property
    def qkv(self) -> float:
        """Return the width of queries, keys, and values together."""
        return self.hidden * (1 + 2 * (self.kv_heads or self.heads) / self.heads)

    @property
    def up(self) -> int:
        """Return the output width of the MLP's first matrix multiplication."""
        return 2 * self.ffn if self.gated else self.ffn

    @property
    def layer_parameters(self) -> float:
        """Return the weights of one layer (norms and biases, 1/1000, are left out)."""
        return self.hidden * (self.qkv + self.hidden + self.up + self.ffn)

    @property
    def embedding_parameters(self) -> float:
        """Return the weights of the embedding, or of the head."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> float:
        """Return the number of all weights."""
        ends = (1 if self.tied else 2) * self.embedding_parameters
        return self.layers * self.layer_parameters + ends

    def flops(self, tokens: float) -> float:
        """Return the operations of a step: 6 per weight and token, and attention's."""
        check_number("tokens", tokens, min=0)
        weights = self.layers * self.layer_parameters + self.embedding_parameters
        attention = 2 * self.layers * self.sequence * self.hidden
        return 6 * tokens * (weights + attention)


@dataclass(frozen=True)
class ConvNet:
    """A convolutional network, for one image of its usual size.

    `flops` forward (two per multiply-add), `parameters`, and `activations`: elements of
    all outputs of its layers, which are written, read and stored for the backward pass.
    """

    name: str
    flops: float
    parameters: float
    activations: float
    layers: int  # with weights: tensors that are all-reduced


def _transformer(row: Row) -> Transformer:
    return Transformer(
        row.text("name"),
        row.count("layers"),
        row.count("hidden"),
        row.count("heads"),
        row.count("ffn"),
        row.count("vocabulary"),
        row.count("sequence"),
        row.text("gated") == "yes",
        row.text("tied") == "yes",
        row.count_or("kv_heads", 0),
    )


def _convnet(row: Row) -> ConvNet:
    activations = row.count("passes") * row.number_of("outputs")
    return ConvNet(
        row.text("name"),
        row.number_of("flops"),
        row.number_of("parameters"),
        activations,
        row.count("layers"),
    )


# nanotron: scripts/scaling_benchmarks.py in github.com/huggingface/nanotron, for the
# Ultra-Scale Playbook (no grouped heads in that benchmark; tied where ffn < 10,000).
# GPT: Brown et al. (2020), table 2.1. Llama 3: Dubey et al. (2024), table 3.
TRANSFORMERS = {t.name: t for t in map(_transformer, read_data("transformers"))}
# Operations (multiply-adds x 2), parameters and outputs of convolutions: the results
# tables of timm, github.com/huggingface/pytorch-image-models; AlexNet: counted from
# torchvision's layers. Outputs pass 3 times where batch normalization and ReLU follow,
# else twice.
CONVNETS = {c.name: c for c in map(_convnet, read_data("convnets"))}


def network_names() -> list[str]:
    """Name all networks that `get_network` knows."""
    return [*TRANSFORMERS, *CONVNETS]


def get_network(name: str) -> Transformer | ConvNet:
    """Return a network's shape by name; raises `InvalidInput` for an unknown one.

    >>> f"{get_network('1B').parameters:,.0f}"
    '1,342,177,280'
    """
    check_choice("model", name, network_names())
    return TRANSFORMERS[name] if name in TRANSFORMERS else CONVNETS[name]


MiB = 2**20
# One call of PyTorch without a graph costs the host 5 to 25 us (published
# measurements); the sum of many calls follows from the mean.
CALL = 15e-6


@dataclass(frozen=True)
class Software:
    """One program. Bytes are per token, for three widths: `hidden` over the ranks of
    sequence parallelism, `hidden` and `up` over those of tensor parallelism.
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
    shards_wait: bool  # ... but with ZeRO 1 it waits for them
    cut_by_cost: bool  # stages by cost, head included; else by layers
    handshakes: int  # messages that the host waits for, before an activation is sent


# Counted in llama.py, functional.py, gradient_accumulator.py and zero.py (nanotron).
# ZeRO 1 copies each bucket's shards back on a stream of its own. All streams share one
# queue (CUDA_DEVICE_MAX_CONNECTIONS=1, nanotron's README), so the next multiplication
# waits for that copy, and the copy for the reduction: nothing overlaps.
NANOTRON = Software(
    "nanotron", (20, 36, 5), (24, 40, 13), (20, 24), (75, 150), (120, 200),
    "flash", "own shard", 4, 10, 25 * MiB, True, True, True, 2,
)  # fmt: skip
# Narayanan et al. (2021): fused bias, dropout and GELU; unfused attention, no overlap.
MEGATRON_2021 = Software(
    "megatron 2021", (22, 12, 4), (26, 12, 8), (12, 16), (24, 30), (24, 30),
    "unfused", "none", 2, 10, None, False, False, False, 0,
)  # fmt: skip
# Korthikanti et al. (2022): the collective of a layer's backward pass runs next to the
# product for its weights, into whose sum the gradient is added.
MEGATRON_2022 = replace(
    MEGATRON_2021, name="megatron 2022", overlap="weights", accumulate_bytes=8
)
# Megatron-Core with --tp-comm-overlap, --overlap-grad-reduce, --overlap-param-gather.
MEGATRON_CORE = Software(
    "megatron-core", (22, 12, 4), (26, 12, 8), (12, 16), (24, 30), (24, 30),
    "cudnn", "chunks", 4, 8, None, True, False, False, 0,
)  # fmt: skip
