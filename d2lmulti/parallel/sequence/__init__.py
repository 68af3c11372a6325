"""Sequence parallelism of attention: each rank holds some of the tokens, of all heads.

A query needs the keys of all earlier tokens, wherever they are. In *ring attention*
keys and values move from rank to rank; in *Ulysses* two all-to-alls exchange tokens for
heads. Chapter: *long_sequences*. Source: Liu et al. (2023); Jacobs et al. (2023).
"""

from .attention import ring_attention, ulysses_attention
from .blocks import AttentionOutput
from .positions import ORDERS, token_positions

__all__ = [
    "ORDERS",
    "AttentionOutput",
    "ring_attention",
    "token_positions",
    "ulysses_attention",
]
