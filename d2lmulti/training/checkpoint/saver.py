"""When and where a run saves itself, and where it goes on."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...checks import check_count, check_flag, check_path
from ...comm.group import Group
from ...errors import InvalidInput, plural
from ...events import unobserved
from ...files.atomic import check_output
from ...files.locks import held_alone
from ..metrics import check_state, leader_does
from ..strategy import Strategy
from . import Checkpoint, load_checkpoint, save_checkpoint
from .fields import FIXED

_MEANING = {
    "rates": "the schedule of learning rates (at steps 0, 1, 2, 4, ...)",
    "logits": "the model (norms of the first example's logits at the start)",
}


class Saver:
    """A file for the run's checkpoints, or none, and how many steps to one of them."""

    def __init__(
        self, path: str | os.PathLike[str] | None, every: int | None, resume: bool
    ) -> None:
        if every is not None:
            check_count("save_every", every)
        check_flag("resume", resume)
        if path is not None:
            check_path("checkpoint", path)
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
        """Hold the file for this run alone; give the position to start from.

        That is the saved one, or the beginning if there is none; `steps` are those of
        an epoch. Raises `InvalidInput` for a file that must not be overwritten, that
        another run is using, or that is another run's; and what `check_output` and
        `load_checkpoint` raise.
        """
        with ExitStack() as stack:
            leader_does(group, lambda: self._claim(stack))
            yield self._start_from(beginning, steps)

    def is_due(self, step: int) -> bool:
        """Tell whether to save after so many steps of an epoch."""
        return self.every is not None and step % self.every == 0

    def save(self, at: Checkpoint, split: Strategy) -> None:
        """Write the position and everything the strategy holds, on rank 0."""
        if self.path is None:
            return
        path = self.path
        with unobserved():
            at.params, at.state, at.buffers = split.snapshot()
        when = (
            f"{plural(at.epoch, 'epoch')} and {plural(at.step, 'step')} from the start"
        )
        check_state([*at.params, *at.state], when)  # never save what is lost
        leader_does(split.group, lambda: save_checkpoint(path, at))

    def _claim(self, stack: ExitStack) -> None:
        if self.path is None:
            return
        target = check_output(self.path)
        stack.enter_context(held_alone(target))
        if target.exists() and not self.resume:
            raise InvalidInput(
                f"expected a new checkpoint file, but {target} is there; go on from it "
                "with resume (--resume), remove it, or choose another name"
            )

    def _start_from(self, beginning: Checkpoint, steps: int) -> Checkpoint:
        if self.path is None or not self.resume or not Path(self.path).exists():
            return beginning
        saved = load_checkpoint(self.path)
        had, asked = saved.settings, beginning.settings
        # Another number as the rate is a choice; a schedule would break off.
        scheduled = any(isinstance(s.get("lr"), str) for s in (had, asked))
        for name in (*FIXED, *(["lr"] if scheduled else [])):
            old, new = had.get(name), asked.get(name)
            if old != new:
                raise InvalidInput(
                    f"expected to go on with {name} {old!r}, as in {self.path}, got "
                    f"{new!r}; give the same one or another checkpoint file"
                )
        for name in ("rates", "logits"):  # of a longer or shorter run, the beginning
            pairs = zip(had[name].split(), asked[name].split(), strict=False)
            if not all(math.isclose(*map(float, p), rel_tol=1e-3) for p in pairs):
                raise InvalidInput(
                    f"expected to go on with {_MEANING[name]} in {self.path}, which "
                    f"gave {had[name]}, got {asked[name]}; pass the one it was "
                    "saved with"
                )
        if saved.step > steps:
            raise InvalidInput(
                f"expected a position within the {steps} steps of an epoch, got step "
                f"{saved.step} in {self.path}; was it saved with more data?"
            )
        shapes = [[p.shape for p in c.params] for c in (saved, beginning)]
        if shapes[0] != shapes[1]:
            raise InvalidInput(
                f"expected parameters of shapes {shapes[1]!r:.80}, got others in "
                f"{self.path}; it belongs to another model of this name"
            )
        saved.settings = beginning.settings
        return saved
