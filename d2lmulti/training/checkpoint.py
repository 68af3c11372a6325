"""Checkpoints: all state that a run needs to resume exactly, in one .npz file.

Parameters and optimizer state are saved unsharded, so a run can resume on another
number of devices, with another strategy or another framework. The file is written
atomically and ends with a checksum; every field is validated on reading. It contains
no pickles.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import check_count
from ..comm.group import Group
from ..errors import DataCorrupt, DataUnavailable, InvalidInput
from ..events import unobserved
from ..files import check_output, locked, write_atomically
from .history import Epoch, check_state, on_rank_zero
from .strategy import Strategy

FORMAT = 4  # format 3 had the finished epochs in a table
# The settings that must not change when a run resumes.
FIXED = ("model", "dataset", "dtype", "batch_size", "seed", "optimizer", "data")
_SEAL = "d2lmulti checkpoint {:03} sha256 "  # then 64 digits, and the file ends
_ARRAYS = ("params", "state", "buffers")


@dataclass
class Checkpoint:
    """The state of a run after `step` batches of epoch `epoch` (both from 0).

    params, state: unsharded parameters and optimizer state; buffers: one list for each
    replica, such as its batch-norm statistics. `epochs` are the finished ones; loss,
    seconds and bytes belong to the unfinished one.
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


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically: the old file stays until the new one is complete.

    Raises `InvalidInput` for a field that `load_checkpoint` would reject, and the
    errors of `write_atomically`.
    """
    try:
        _check_fields(checkpoint)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"cannot save this run to {path}: {error}") from error
    about = {k: v for k, v in vars(checkpoint).items() if k not in _ARRAYS}
    groups = {"params": checkpoint.params, "state": checkpoint.state}
    groups |= {f"buffers{i}": b for i, b in enumerate(checkpoint.buffers)}
    arrays = {f"{name}/{i}": x for name, xs in groups.items() for i, x in enumerate(xs)}
    file = io.BytesIO()
    np.savez(file, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
    with zipfile.ZipFile(file, "a") as archive:  # a comment is at the end of the file
        archive.comment = _SEAL.format(FORMAT).encode() + b"0" * 64
    # Views that outlive an error are reported when Python 3.13 collects the file.
    with file.getbuffer() as whole, whole[:-64] as content:
        digest = hashlib.sha256(content).hexdigest().encode()
        write_atomically(path, lambda f: (f.write(content), f.write(digest)))


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint and validate every field.

    Raises `DataUnavailable` if the file cannot be opened, and `DataCorrupt` if it is
    truncated, damaged, or not a checkpoint of this version.
    """
    name = path
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise DataUnavailable(f"cannot read the checkpoint {name}: {error}") from error
    try:
        _check_seal(content)
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        about = json.loads(arrays.pop("about").tobytes())
        if about.keys() != {f.name for f in fields(Checkpoint)} - {*_ARRAYS}:
            raise ValueError(f"its fields are {', '.join(about)}")
        groups: dict[str, list[np.ndarray]] = {"params": [], "state": []}
        for key, array in arrays.items():
            groups.setdefault(key.partition("/")[0], []).append(array)
        params, state, *buffers = groups.values()
        checkpoint = Checkpoint(**about, params=params, state=state, buffers=buffers)
        _check_fields(checkpoint)
    except Exception as error:  # NumPy, zipfile, and json raise many types
        raise DataCorrupt(
            f"expected a checkpoint in {name}, got a file that cannot be read: "
            f"{error}; use an older checkpoint or start anew"
        ) from error
    return checkpoint


def _check_seal(content: bytes) -> None:
    """Raise `ValueError` unless the file ends with the checksum of its other bytes."""
    pattern = _SEAL.replace("{:03}", r"(\d{3})").encode() + rb"([0-9a-f]{64})"
    seal = re.fullmatch(pattern, content[-len(_SEAL.format(0)) - 64 :])
    if not seal:
        raise ValueError("it is truncated, damaged, or not a checkpoint")
    if hashlib.sha256(content[:-64]).hexdigest().encode() != seal[2]:
        raise ValueError("its checksum is wrong")
    if int(seal[1]) != FORMAT:
        raise ValueError(
            f"it has format {int(seal[1])} of another version of d2lmulti; this one "
            f"reads format {FORMAT}"
        )


def _check_fields(checkpoint: Checkpoint) -> None:
    """Raise `ValueError` or `TypeError` for an impossible value of a field."""
    settings = checkpoint.settings
    missing = {*FIXED, "rates", "logits"} - settings.keys()
    if missing:
        raise ValueError(f"expected {', '.join(sorted(missing))} in its settings")
    samples = [*settings["rates"], *settings["logits"]]
    if not all(isinstance(x, float) and math.isfinite(x) for x in samples):
        raise ValueError(f"its rates and logits cannot be {samples!r:.60}")
    epochs = [Epoch(**epoch) for epoch in checkpoint.epochs]
    for part in (checkpoint, *epochs):
        for name in ("epoch", "step", "bytes_moved", "loss", "seconds", "accuracy"):
            value = getattr(part, name, 0)
            kind = (int, float) if name in ("loss", "seconds", "accuracy") else int
            number = isinstance(value, kind) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0:
                raise ValueError(f"its {name} cannot be {value!r:.60}")
    if len(epochs) != checkpoint.epoch:
        raise ValueError(f"expected {checkpoint.epoch} finished epochs in its history")
    buffers = [x for replica in checkpoint.buffers for x in replica]
    for x in (*checkpoint.params, *checkpoint.state, *buffers):
        if x.dtype != settings["dtype"]:
            raise ValueError(f"an array has dtype {x.dtype}, not {settings['dtype']}")


class Saver:
    """The checkpoint file of a run, if it has one, and the steps between saves."""

    def __init__(
        self, path: str | os.PathLike[str] | None, every: int | None, resume: bool
    ) -> None:
        if every is not None:
            check_count("save_every", every)
        if path is None and (resume or every is not None):
            raise InvalidInput(
                "expected a checkpoint file with resume or save_every, got none; pass "
                "checkpoint='run.npz'"
            )
        self.path, self.every, self.resume = path, every, resume

    @contextmanager
    def held(
        self, group: Group, beginning: Checkpoint, steps: int
    ) -> Iterator[Checkpoint]:
        """Lock the file for this run; yield the state to start from.

        This is the saved state, or `beginning` if there is none; an epoch has `steps`
        steps. Raises `InvalidInput` for a file that must not be overwritten, that
        another run is using, or that was saved by a different run.
        """
        with ExitStack() as stack:
            on_rank_zero(group, lambda: self._claim(stack))
            yield self._start_from(beginning, steps)

    def save(self, at: Checkpoint, split: Strategy) -> None:
        """Write the state of the run and of its strategy, on rank 0."""
        if self.path is None:
            return
        path = self.path
        with unobserved():
            at.params, at.state, at.buffers = split.snapshot()
        check_state([*at.params, *at.state], f"at epoch {at.epoch}, step {at.step}")
        on_rank_zero(split.group, lambda: save_checkpoint(path, at))

    def _claim(self, stack: ExitStack) -> None:
        if self.path is None:
            return
        target = check_output(self.path)
        stack.enter_context(locked(target))
        if target.exists() and not self.resume:
            raise InvalidInput(
                f"expected a new checkpoint file, but {target} exists; continue from "
                "it with resume (--resume), or choose another name"
            )

    def _start_from(self, beginning: Checkpoint, steps: int) -> Checkpoint:
        """Return the saved state; raise unless it belongs to this run."""
        if self.path is None or not self.resume or not Path(self.path).exists():
            return beginning
        saved = load_checkpoint(self.path)
        old, new = saved.settings, beginning.settings
        # Another constant learning rate is allowed; a schedule must be the same.
        scheduled = any(isinstance(s.get("lr"), str) for s in (old, new))
        differ = [n for n in (*FIXED, *["lr"] * scheduled) if old.get(n) != new.get(n)]
        for name in ("rates", "logits"):
            # Runs may differ in length: compare the beginning.
            pairs = zip(old[name], new[name], strict=False)
            if not all(math.isclose(*pair, rel_tol=1e-3) for pair in pairs):
                differ.append(name)
        if differ:
            words = (f"{n} {old.get(n)!r}, got {new.get(n)!r}" for n in differ)
            raise InvalidInput(
                f"expected the settings that {self.path} was saved with: "
                f"{'; '.join(words)}"
            )
        shapes = [[(p.shape, p.dtype) for p in c.params] for c in (saved, beginning)]
        if shapes[0] != shapes[1] or saved.step > steps:
            raise InvalidInput(
                f"{self.path} was saved after step {saved.step} of an epoch with "
                f"parameters {shapes[0]!r:.80}; got {steps} steps and {shapes[1]!r:.80}"
            )
        saved.settings = beginning.settings
        return saved
