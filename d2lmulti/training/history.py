"""The result of a training run: its settings, its epochs, its parameters."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..backends.protocol import Tensor


@dataclass(frozen=True)
class Epoch:
    """The result of one epoch."""

    loss: float  # mean over the training examples, during the epoch
    accuracy: float  # on the test set, after the epoch
    seconds: float  # training only, without evaluation
    bytes_moved: int  # between devices


@dataclass
class History:
    """A finished training run: its settings, its epochs, its parameters."""

    settings: dict[str, Any]  #: the arguments of `train`
    devices: list[str]  #: by name, in rank order
    epochs: list[Epoch] = field(default_factory=list)  #: one entry per epoch
    #: the trained parameters, one list per device
    device_params: list[list[Tensor]] = field(default_factory=list, repr=False)

    @property
    def losses(self) -> list[float]:
        """Training loss of every epoch."""
        return [epoch.loss for epoch in self.epochs]

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy after every epoch."""
        return [epoch.accuracy for epoch in self.epochs]

    @property
    def bytes_moved(self) -> int:
        """Bytes between devices over the whole run."""
        return sum(epoch.bytes_moved for epoch in self.epochs)

    def as_json(self) -> dict[str, Any]:
        """Return everything but the parameters, as plain JSON values."""
        run = {"devices": self.devices, "bytes_moved": self.bytes_moved}
        return {**self.settings, **run, "epochs": [asdict(e) for e in self.epochs]}
