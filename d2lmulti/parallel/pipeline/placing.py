"""Put a model's parameters where their stages are, and bring them together again."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Tensor
from ...backends.sizes import nbytes
from ...cluster.ledger import open_ledgers
from ...errors import InvalidInput
from .cutting import Stage


def place_params(
    params: Sequence[Tensor], stages: Sequence[Stage], devices: Sequence[AnyDevice]
) -> list[list[Tensor]]:
    """Copy every stage's parameters to its device and attach gradients.

    Stage s lies on device s mod p; with more stages than devices, each device has
    several. Gives one list a stage. Raises `InvalidInput` for stages that do not share
    out evenly, and for a number of parameters that is not the stages'.
    """
    check_stages(stages, devices)
    if len(params) != stages[-1].last:
        raise InvalidInput(
            f"expected the {stages[-1].last} parameters of the model that was cut, got "
            f"{len(params)}"
        )
    placed = []
    for s, stage in enumerate(stages):
        mine = [
            backend_of(p).copy_to(p, devices[s % len(devices)])
            for p in params[stage.first : stage.last]
        ]
        for p in mine:
            backend_of(p).attach_grad(p)
        placed.append(mine)
    for ledger in open_ledgers():
        ledger.loaded += sum(nbytes(p) for mine in placed for p in mine)
    return placed


def gather_params(
    stage_params: Sequence[Sequence[Tensor]], device: AnyDevice = "cpu"
) -> list[Tensor]:
    """Copy the parameters of all stages to one device, in the model's order."""
    return [backend_of(p).copy_to(p, device) for mine in stage_params for p in mine]


def check_stages(stages: Sequence[Stage], devices: Sequence[AnyDevice]) -> None:
    """Refuse stages that do not give every device the same number of them."""
    if not devices or not stages or len(stages) % len(devices):
        raise InvalidInput(
            f"expected as many stages as devices, or a multiple of it, got "
            f"{len(stages)} stages for {len(devices)} devices; cut with "
            "cut_stages(model, len(devices))"
        )
