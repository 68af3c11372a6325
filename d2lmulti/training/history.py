"""The result of a training run, and the values that its processes exchange for it.

Each process has its own losses and messages only, and all must end with the same
history. They exchange short texts, which no ledger counts. Ranks that differ in
learning rate, seed, or optimizer would continue training without an error while their
weights diverge; so settings are described and compared. Chapter: *many_machines*.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ..backends import backend_of
from ..backends.protocol import Backend, Tensor
from ..comm.group import Group
from ..data import Dataset
from ..errors import Diverged, InvalidInput, PeerError, by_call
from ..models.networks import Model, run_layers
from ..observe.ledger import Ledger
from .rate import Schedule


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
        """Return the training loss of every epoch."""
        return [epoch.loss for epoch in self.epochs]

    @property
    def accuracies(self) -> list[float]:
        """Return the test accuracy after every epoch."""
        return [epoch.accuracy for epoch in self.epochs]

    @property
    def bytes_moved(self) -> int:
        """Return the bytes between devices over the whole run."""
        return sum(epoch.bytes_moved for epoch in self.epochs)

    def as_json(self) -> dict[str, Any]:
        """Return everything but the parameters, as plain JSON values."""
        run = {"devices": self.devices, "bytes_moved": self.bytes_moved}
        return {**self.settings, **run, "epochs": [asdict(e) for e in self.epochs]}


def allgather_values(group: Group, value: Any) -> list[Any]:
    """Return the value of each process, of plain JSON types, in rank order."""
    if not group.is_distributed:
        return [value]
    return [json.loads(text) for text in group.engine.allgather_text(json.dumps(value))]


def on_rank_zero(group: Group, work: Callable[[], object]) -> None:
    """Run `work` in the process of rank 0 while the others wait; fail together.

    Raises what `work` raises, and `PeerError` in the other processes.
    """
    error: Exception | None = None
    if group.leader:
        try:
            work()
        except Exception as e:
            error = e
    message = allgather_values(group, str(error) if error else "")[0]
    if error:
        raise error
    if message:
        raise PeerError(f"rank 0 failed to handle the files of this run: {message}")


def add_up(loss: float, losses: Iterable[float]) -> float:
    """Add losses to `loss` one by one, from left to right.

    Then the sum of an epoch equals the sum of its parts bit for bit. Since Python 3.12,
    the built-in `sum` compensates rounding errors within one call only.
    """
    for x in losses:
        loss += x
    return loss


class EpochTotals:
    """The losses, seconds, and bytes of an epoch, summed over all processes."""

    def __init__(self, group: Group, moved: Ledger, epoch: int, step: int) -> None:
        self.group, self.moved = group, moved
        self.epoch, self.step = epoch, step  # both from 0
        # Of each step: its local losses, and the number of targets in all of them.
        self.steps: list[tuple[Sequence[Tensor], int]] = []
        self._last_finite: float | None = None
        self._began = time.perf_counter()

    def collect(self, loss: float) -> tuple[float, float, int]:
        """Return `loss` plus the losses of `steps`, the seconds, and the bytes.

        Clears `steps`. Losses are added in the order of one process: step by step, and
        rank by rank in each step. Each process counts the bytes that it received.
        Raises `Diverged` for a loss that is not finite.
        """
        losses = [
            [float(backend_of(x).numpy(x)) for x in step] for step, _ in self.steps
        ]
        seconds, count = time.perf_counter() - self._began, self.moved.bytes
        if self.group.is_distributed:
            received = sum(self.moved.received[rank] for rank in self.group.local_ranks)
            gathered = allgather_values(self.group, [losses, seconds, received])
            by_step = zip(*(values[0] for values in gathered), strict=True)
            losses = [[x for rank in step for x in rank] for step in by_step]
            seconds = max(values[1] for values in gathered)
            count = sum(values[2] for values in gathered)
        for step, (_, targets) in zip(losses, self.steps, strict=True):
            mean, self.step = add_up(0.0, step) / targets, self.step + 1
            if not math.isfinite(mean):
                before = "there was no loss before"
                if self._last_finite is not None:
                    before = f"the previous loss was {self._last_finite:.4g}"
                raise Diverged(
                    f"expected a finite loss, got {mean} in epoch {self.epoch + 1}, "
                    f"step {self.step}; {before}. Try a tenth of the learning rate, "
                    "and check the data for very large values"
                )
            self._last_finite = mean
        self.steps.clear()
        return add_up(loss, (x for step in losses for x in step)), seconds, count


def check_state(arrays: Iterable[np.ndarray], when: str) -> None:
    """Raise `Diverged` for a value of the run's state that is not finite."""
    for i, array in enumerate(arrays):
        if not np.isfinite(array).all():
            raise Diverged(
                f"expected finite values, got nan or inf in array {i} of parameters "
                f"and optimizer state {when}; try a tenth of the learning rate"
            )


def check_settings(group: Group, settings: Mapping[str, Any]) -> None:
    """Raise `InvalidInput`, which names them, in every process if settings differ."""
    local = {name: shorten(describe(value)) for name, value in settings.items()}
    gathered: list[dict[str, str]] = allgather_values(group, local)
    differ = []
    for name in dict.fromkeys(name for words in gathered for name in words):
        by_rank = {i: words.get(name, "nothing") for i, words in enumerate(gathered)}
        if len(set(by_rank.values())) > 1:
            differ.append(f"{name} {by_call(by_rank)}")
    if differ:
        raise InvalidInput(
            f"expected the same settings in every process, got {'; '.join(differ)}; "
            "start all with the same program, options, data and checkpoint"
        )


def describe(value: Any) -> str:
    """Return text that is the same in two processes only if their values are the same.

    A function is described by its name, its code, and its bound values: closure,
    defaults, and the object of a method; an object by its class and attributes. Raises
    `InvalidInput` for a value that has no description but its address, which differs
    between processes.
    """
    try:
        words = _describe(value)
    except RecursionError:
        words = "a value that contains itself, at 0x"
    if " at 0x" in words:
        raise InvalidInput(
            f"expected a setting that processes can compare, got {words:.200}; pass a "
            "function, or an object of a class written in Python"
        )
    return words


def _describe(value: Any) -> str:
    if isinstance(value, partial):
        return f"partial{_describe([value.func, value.args, value.keywords])}"
    if isinstance(value, MethodType):
        return f"method{_describe([value.__func__, value.__self__])}"
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        bound = [value.__defaults__, value.__kwdefaults__, cells]
        name = f"{value.__module__}.{value.__qualname__}"
        return f"{name}({_describe(value.__code__)}, {_describe(bound)})"
    if isinstance(value, CodeType):
        return _describe([value.co_code.hex(), value.co_names, value.co_consts])
    if isinstance(value, (type, ModuleType)):
        return value.__name__
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe, value))}]"
    if isinstance(value, (set, frozenset)):  # without an order
        return f"{{{', '.join(sorted(map(_describe, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(_describe, value.items()))}}}"
    with suppress(InvalidInput):  # not a tensor of any backend
        value = backend_of(value).numpy(value)
    if isinstance(value, np.ndarray):
        content = blake2b(np.ascontiguousarray(value).data, digest_size=6).hexdigest()
        return f"{value.dtype} array {value.shape} {content}"
    if hasattr(value, "__dict__"):
        attributes = (f"{k}={_describe(v)}" for k, v in vars(value).items())
        return f"{type(value).__qualname__}({', '.join(attributes)})"
    return value if isinstance(value, str) else repr(value)


def shorten(words: str) -> str:
    """Replace all but the beginning of a long description by a digest of the whole."""
    digest = blake2b(words.encode(), digest_size=6).hexdigest()
    return words if len(words) <= 60 else f"{words[:40]}... ({digest})"


def about_machine(B: Backend) -> dict[str, str]:
    """Return the versions that affect the bits of a run, without build numbers."""
    release = str(sys.modules[B.name].__version__).partition("+")[0]
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "backend": f"{B.name} {release}"}


def fingerprint(data: Dataset, rate: float | Schedule, steps: int) -> dict[str, Any]:
    """Return descriptions of data and learning rates, the same in all processes.

    The rates are those of a schedule at steps 0, 1, 2, 4, ... of the run.
    """
    rates = []
    if isinstance(rate, Schedule):
        sampled = [0, *(2**i for i in range(steps.bit_length()) if 2**i < steps)]
        rates = [float(rate.rate(step)) for step in sampled]
    return {"data": shorten(describe(data)), "rates": rates}


def logits_of(
    B: Backend, data: Dataset, model: Model, start: Sequence[np.ndarray]
) -> list[float]:
    """Return the norms of the logits of the first example, from the weights `start`.

    There is one for each of the model's functions. They identify a model under another
    framework or version of Python.
    """
    X = B.array(data.train_X[:1])
    functions = [model.forward_eval, *([] if model.together else [model.forward])]
    if model.layers:
        functions.append(lambda B, params, X: run_layers(B, model.layers, params, X))
    with B.pause():
        logits = [f(B, [B.array(p) for p in start], X) for f in functions]
    return [float(np.linalg.norm(B.numpy(out))) for out in logits]
