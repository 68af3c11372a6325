"""Sequence parallelism of attention: every rank holds some of the tokens, of all heads.

A query must meet the keys of all tokens before it, wherever they are. In *ring
attention* keys and values go from rank to rank; with *Ulysses* two all-to-alls exchange
tokens for heads. Chapter: *long_sequences*.
Source: Liu et al. (2023); Jacobs et al. (2023).
"""

from .blocks import Attended
from .positions import ORDERS, token_positions
from .ring import ring_attention
from .ulysses import ulysses_attention

__all__ = [
    "ORDERS",
    "Attended",
    "ring_attention",
    "token_positions",
    "ulysses_attention",
]
