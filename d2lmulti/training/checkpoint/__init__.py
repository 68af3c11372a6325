"""Checkpoints: all that a run needs to go on exactly, in one file without pickle.

Parameters and optimizer state are saved whole, as one device would hold them, so a run
can go on with another number of devices, another strategy, another framework. The file
is NumPy's npz, sealed; it is written whole or not at all, and believed as little.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import check_kind, check_path
from ...errors import DataCorrupt, DataUnavailable, InvalidInput
from ...files.atomic import write_atomically
from ...files.npz import Unreadable, read_npz, write_npz
from .fields import (
    check_about,
    check_arrays,
    from_table,
    parse_about,
    to_table,
)

FORMAT = 3  # 1 had no seal, 2 no fingerprint of data, model and learning rates
_GROUPS = ("epochs", "params", "state", "buffers")


@dataclass
class Checkpoint:
    """A run after `step` batches of epoch `epoch` (both from 0).

    params, state: whole parameters and optimizer state; buffers: the statistics of
    every replica, one list each. `epochs` are finished ones; loss, seconds and bytes
    belong to the one that is not.
    """

    settings: dict[str, Any]
    epoch: int = 0
    step: int = 0
    epochs: list[dict[str, Any]] = field(default_factory=list)
    loss: float = 0.0  # summed over the targets so far
    seconds: float = 0.0
    bytes_moved: int = 0
    params: Sequence[np.ndarray] = ()
    state: Sequence[np.ndarray] = ()
    buffers: Sequence[Sequence[np.ndarray]] = ()

    @property
    def began(self) -> bool:
        """Whether any step has been taken."""
        return self.epoch > 0 or self.step > 0

    def next_epoch(self, finished: dict[str, Any]) -> None:
        """Enter a finished epoch and stand at the start of the next."""
        self.epochs = [*self.epochs, finished]
        self.epoch, self.step = self.epoch + 1, 0
        self.loss, self.seconds, self.bytes_moved = 0.0, 0.0, 0


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write a checkpoint; until it is whole on the disk, the old file stays.

    Raises `InvalidInput` for what `load_checkpoint` would refuse, such as a loss that
    is not finite, and what `write_atomically` raises.
    """
    check_path("path", path)
    check_kind("checkpoint", checkpoint, Checkpoint, "a Checkpoint")
    about = {
        name: value for name, value in vars(checkpoint).items() if name not in _GROUPS
    }
    about["counts"] = {
        "params": len(checkpoint.params),
        "state": len(checkpoint.state),
        "buffers": [len(buffers) for buffers in checkpoint.buffers],
    }
    arrays = [*checkpoint.params, *checkpoint.state]
    arrays += [x for buffers in checkpoint.buffers for x in buffers]
    try:
        check_about(about)
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        parse_about(text)
        check_arrays(arrays, about["settings"]["dtype"])
        table = to_table(checkpoint.epochs)
        from_table(table, checkpoint.epoch)
    except Unreadable as error:
        raise InvalidInput(
            f"cannot save this run to {os.fspath(path)}, because {error}; the file "
            "there is as it was"
        ) from error
    members = {"about": text, "epochs": table}
    members |= dict(zip(_names(about["counts"]), arrays, strict=True))
    write_atomically(path, lambda f: write_npz(f, "checkpoint", FORMAT, members))


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint and check all that can be checked without its model.

    Raises `InvalidInput` where there is none, `DataUnavailable` where it cannot be
    opened, `DataCorrupt` for a file that is truncated, damaged, forged or something
    else.
    """
    if not Path(check_path("checkpoint", path)).is_file():
        raise InvalidInput(f"expected a checkpoint at {os.fspath(path)}, found no file")
    try:
        with open(path, "rb") as file:
            arrays = read_npz(file, "checkpoint", FORMAT)
        about = parse_about(arrays.pop("about", None))
        counts = about.pop("counts")
        epochs = from_table(arrays.pop("epochs", None), about["epoch"])
        sizes = [counts["params"], counts["state"], *counts["buffers"]]
        # The number first: a list of all names may be too long for this world.
        if sum(sizes) != len(arrays) or list(arrays) != _names(counts):
            raise Unreadable("its arrays are not those that it should have")
        check_arrays(list(arrays.values()), about["settings"]["dtype"])
    except Unreadable as error:
        raise DataCorrupt(
            f"expected a checkpoint in {os.fspath(path)}, got a file that cannot be "
            f"read: {error}; take an older checkpoint or start anew"
        ) from error
    except OSError as error:
        raise DataUnavailable(
            f"expected a checkpoint in {os.fspath(path)}, but it cannot be opened: "
            f"{error.strerror}; change its permissions or choose another"
        ) from error
    rest = iter(arrays.values())
    params, state, *buffers = ([*islice(rest, count)] for count in sizes)
    return Checkpoint(
        **about, epochs=epochs, params=params, state=state, buffers=buffers
    )


def _names(counts: dict[str, Any]) -> list[str]:
    groups = {"params": counts["params"], "state": counts["state"]}
    groups |= {f"buffers/{rank}": n for rank, n in enumerate(counts["buffers"])}
    return [f"{group}/{i}" for group, count in groups.items() for i in range(count)]
