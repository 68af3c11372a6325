"""All ways to split the work at once as a strategy. Chapter: *composing*."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from ..backends.protocol import Tensor
from ..checks import check_count
from ..comm.collectives import allgather
from ..comm.mesh import Mesh
from .arguments import check_mesh
from .mesh import gather_from_mesh, place_on_mesh, train_on_mesh
from .mesh.holding import MeshParams
from .mesh.step import mesh_lists
from .strategy import Strategy


class OnMesh(Strategy):
    """All axes at once: `data`, `tensor`, `pipeline`, `sequence` and `expert`."""

    options: ClassVar = {
        "mesh": None,
        "schedule": "1f1b",
        "micro_batches": 4,
        "stages": None,
        "algorithm": "star",
        "zero": 0,
    }
    owned: MeshParams
    mesh: Any  # sizes of the axes; then in words
    schedule: str
    micro_batches: int
    stages: int | None
    algorithm: str
    zero: int

    def prepare(self) -> None:
        """Lay out the mesh."""
        axes = check_mesh(self.mesh)
        self.mesh = ",".join(f"{axis}={size}" for axis, size in axes.items())
        self.axes = Mesh(self.group, **axes)
        hint = "on a mesh the state alone is sharded; the strategy sharded has more"
        self.zero = check_count("zero", self.zero, min=0, max=1, hint=hint)

    def shard(self, whole: Sequence[Tensor]) -> MeshParams:
        """Give every device its part of its stages' layers."""
        placed = place_on_mesh(
            whole, self.devices, self.axes, self.model,
            stages=self.stages, zero=self.zero,
        )  # fmt: skip
        mesh_lists(placed, self.schedule, self.micro_batches)
        return placed

    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Put the whole together on every device."""
        return gather_from_mesh(self.owned.like(owned))

    def trained(self) -> list[list[Tensor]]:
        """Give what every device's optimizer updates."""
        return self.owned.parts()

    def shard_state(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        """Cut the optimizer's state as the weights, and once more with ZeRO 1."""
        return self.shard(whole).parts()

    def gather_state(self, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Put it together again."""
        if not self.zero:
            return super().gather_state(parts)
        wholes: list[list[Tensor]] = [[] for _ in parts]
        for group, at in self.axes.local("data"):
            for j, p in enumerate(self.owned[at[0]]):
                joined = allgather([parts[i][j] for i in at], group)
                for i, flat in zip(at, joined, strict=True):
                    wholes[i].append(flat.reshape(tuple(p.shape)))
        return super().gather_state(wholes)

    def training_step(self) -> Callable[..., list[Tensor]]:
        """Give `train_on_mesh`."""
        return partial(
            train_on_mesh,
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            algorithm=self.algorithm,
        )

    @property
    def shares(self) -> tuple[int, str]:
        """A part for each micro-batch of each replica."""
        sizes = self.axes.axes
        replicas = sizes.get("data", 1) * sizes.get("expert", 1)
        return replicas * self.micro_batches, "replicas times micro-batches"
