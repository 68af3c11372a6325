"""Data parallelism with sharded states as a strategy. Chapter: *sharding*."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from ..backends.protocol import Tensor
from ..checks import check_count
from ..parallel.sharded import gather_parts, gather_shards, shard_params, train_shards
from ..parallel.sharded.sharded_params import ShardedParams, unflatten
from .strategy import Strategy


class Sharded(Strategy):
    """Every device trains on a part of each batch and owns a part of each layer."""

    options: ClassVar = {"zero": 3, "precision": None, "accumulate": 1}
    cuts_batches = True
    owned: ShardedParams
    zero: int
    precision: str | None

    def prepare(self) -> None:
        """Check which stage it is."""
        super().prepare()
        self.zero = check_count(
            "zero", self.zero, max=3, hint="the strategy data shards nothing"
        )

    def shard(self, whole: Sequence[Tensor]) -> ShardedParams:
        """Give every device what it holds under this stage of ZeRO."""
        return shard_params(
            whole, self.devices, self.model, self.zero, precision=self.precision
        )

    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Put the whole together on every device, all-gathered if need be."""
        return gather_shards(self.owned)

    def trained(self) -> list[list[Tensor]]:
        """Give every device's own parts."""
        return self.owned.parts()

    def shard_state(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        """Cut the optimizer's state into parts, whatever the stage."""
        return shard_params(whole, self.devices, self.model, 3)

    def gather_state(self, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """All-gather them."""
        return unflatten(self.owned.flat_params, gather_parts(parts))[0]

    def training_step(self) -> Callable[..., list[Tensor]]:
        """Give `train_shards`."""
        return partial(train_shards, accumulate=self.accumulate)
