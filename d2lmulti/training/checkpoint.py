"""Checkpoints: all that a run needs to go on exactly, in one file without pickle.

Parameters and optimizer state are saved whole, as one device would hold them, so a run
can go on with another number of devices, another strategy, another framework. The file
is NumPy's npz; it is written whole or not at all.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..cluster.ledger import uncounted
from ..errors import DataCorrupt, InvalidInput
from .files import remove_leftovers, write_atomically
from .strategy import Strategy
from .together import leader_does

_FORMAT = 1
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile)
_GROUPS = ("params", "state", "buffers")
# What must be the same in the run that goes on; the rest is free.
_FIXED = ("model", "dataset", "dtype", "batch_size", "seed", "optimizer")


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

    Raises `InvalidInput` as `write_atomically` does, and what the disk raises.
    """
    about = {
        name: value for name, value in vars(checkpoint).items() if name not in _GROUPS
    }
    about |= {"format": _FORMAT, "replicas": len(checkpoint.buffers)}
    arrays: dict[str, Any] = {
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8)
    }
    lists = {"params": checkpoint.params, "state": checkpoint.state}
    for rank, buffers in enumerate(checkpoint.buffers):
        lists[f"buffers/{rank}"] = buffers
    for name, values in lists.items():
        arrays |= {f"{name}/{i}": value for i, value in enumerate(values)}
    write_atomically(path, lambda file: np.savez(file, **arrays))


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint.

    Raises `InvalidInput` where there is none, `DataCorrupt` for a file that is
    truncated, damaged or something else.
    """
    if not Path(path).is_file():
        raise InvalidInput(f"expected a checkpoint at {os.fspath(path)}, found no file")
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}  # checks every CRC
        about = json.loads(arrays.pop("about").tobytes())
        if about.pop("format") != _FORMAT:
            raise ValueError("it has another format")
        replicas = about.pop("replicas")
        return Checkpoint(
            **about,
            params=_numbered(arrays, "params"),
            state=_numbered(arrays, "state"),
            buffers=[_numbered(arrays, f"buffers/{rank}") for rank in range(replicas)],
        )
    except _UNREADABLE as e:
        raise DataCorrupt(
            f"expected a checkpoint in {os.fspath(path)}, got a file that cannot be "
            f"read: {e}; take an older checkpoint or start anew"
        ) from e


class Saver:
    """When and where a run saves itself, and where it goes on."""

    def __init__(
        self, path: str | os.PathLike[str], every: int | None, resume: bool
    ) -> None:
        if every is not None and (isinstance(every, bool) or every < 1):
            raise InvalidInput(f"expected save_every of at least 1 step, got {every!r}")
        self.path, self.every, self.resume = Path(path), every, resume

    @classmethod
    def of(
        cls, path: str | os.PathLike[str] | None, every: int | None, resume: bool
    ) -> Saver | None:
        """Make one, or none without a file; refuse options that need a file."""
        if path is not None:
            return cls(path, every, resume)
        if resume or every is not None:
            raise InvalidInput(
                "expected a checkpoint file with resume or save_every, got none; pass "
                "checkpoint='run.npz'"
            )
        return None

    def start_from(self, beginning: Checkpoint) -> Checkpoint:
        """Give the saved position to go on from, or the beginning if there is none.

        Raises `InvalidInput` for a checkpoint of another run, and what
        `load_checkpoint` raises.
        """
        remove_leftovers(self.path)
        if not self.resume or not self.path.exists():
            return beginning
        saved = load_checkpoint(self.path)
        for name in _FIXED:
            old, new = saved.settings.get(name), beginning.settings[name]
            if old != new:
                raise InvalidInput(
                    f"expected to go on with {name} {old!r}, as in {self.path}, got "
                    f"{new!r}; give the same one or another checkpoint file"
                )
        shapes = [[p.shape for p in c.params] for c in (saved, beginning)]
        if shapes[0] != shapes[1]:
            raise InvalidInput(
                f"expected parameters of shapes {shapes[1]!r:.80}, got others in "
                f"{self.path}; it belongs to another model of this name"
            )
        saved.settings = beginning.settings
        return saved

    def is_due(self, step: int) -> bool:
        """Tell whether to save after so many steps of an epoch."""
        return self.every is not None and step % self.every == 0

    def save(self, at: Checkpoint, split: Strategy) -> None:
        """Write the position and everything the strategy holds, on rank 0."""
        with uncounted():
            at.params, at.state, at.buffers = split.snapshot()
        leader_does(split.group, lambda: save_checkpoint(self.path, at))


def _numbered(arrays: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    count = sum(key.rpartition("/")[0] == name for key in arrays)
    return [arrays[f"{name}/{i}"] for i in range(count)]
