"""Sharded data parallelism: ZeRO 1, 2, and 3, the last also known as FSDP.

Each device trains on its part of the batch, as in data parallelism, and owns one shard
of every layer. ZeRO 1 stores the optimizer's state of that shard only, ZeRO 2 also the
gradients, ZeRO 3 also the parameters. Chapter: *sharding*.
Source: Rajbhandari et al. (2020); Zhao et al., PyTorch FSDP (2023).
"""

from .sharded_params import (
    PRECISIONS,
    ShardedParams,
    gather_parts,
    gather_shards,
    shard_params,
)
from .training import train_shards

__all__ = [
    "PRECISIONS",
    "ShardedParams",
    "gather_parts",
    "gather_shards",
    "shard_params",
    "train_shards",
]
