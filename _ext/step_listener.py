"""What a recorded step reports: layers, rounds of messages, marks, and updates."""

from __future__ import annotations

import linecache
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import d2lmulti
from d2lmulti.backends import nbytes
from d2lmulti.models.networks import Layer

LIBRARY = Path(d2lmulti.__file__).resolve().parent
PARALLEL = str(LIBRARY / "parallel")
Event = tuple[Any, ...]


@dataclass(eq=False)
class Listener:
    """Writes down what the library reports, and what layers and updates report."""

    log: list[Event] = field(default_factory=list)
    owner: dict[int, int] = field(default_factory=dict)  # device of a tensor, by its id
    calls: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    lines: list[str] = field(default_factory=list)

    def on_round(self, this_round: Any, itemsize: int) -> None:
        rows = [(t.source, t.target, t.length * itemsize) for t in this_round]
        self.log.append(("round", rows, self.sender()))

    def on_mark(self, label: str) -> None:
        self.log.append(("mark", label))

    def on_pipeline(self, *facts: object) -> None:
        self.log.append(("pipeline",))

    def on_instruction(self, place: int, instruction: Any) -> None:
        self.log.append(("instruction", place, instruction))

    @contextmanager
    def on_work(self, tracks: Sequence[object], name: str, wait: Any) -> Iterator[None]:
        yield
        self.log.append(("end", name))

    def sender(self) -> int:
        """Return the number of the line of a strategy that sent what is exchanged."""
        frame = sys._getframe(1)
        while frame.f_back and not frame.f_code.co_filename.startswith(PARALLEL):
            frame = frame.f_back
        path, number = frame.f_code.co_filename, frame.f_lineno
        code = linecache.getline(path, number).strip()
        line = f"{Path(path).relative_to(LIBRARY.parent)}, line {number}: {code}"
        if line not in self.lines:
            self.lines.append(line)
        return self.lines.index(line)

    def own(self, device_params: Sequence[Sequence[Any]]) -> None:
        """Note which device has which tensors: simulated devices share the CPU."""
        self.owner.update(
            {id(p): d for d, own in enumerate(device_params) for p in own}
        )

    def device(self, params: Sequence[Any], number: int) -> int:
        """Tell which device computes a layer: by its weights, else by its turn."""
        turn = self.calls[number]
        self.calls[number] += 1
        return self.owner.get(id(params[0]), turn)

    def listened(self, layer: Layer) -> Layer:
        """Return a layer that reports who computes it, and what goes in and out."""
        number = number_of(layer.name)

        def forward(B: Any, params: Sequence[Any], X: Any) -> Any:
            out = layer.forward(B, params, X)
            device = self.device(params, number)
            self.log.append(("layer", device, number, nbytes(X), nbytes(out)))
            return out

        return layer._replace(forward=forward)

    def listened_shard(self, layer: Any) -> Any:
        """Do the same for a layer of a network under tensor parallelism."""
        number = number_of(layer.name)

        def forward(B: Any, params: Sequence[Any], X: Any, part: Any) -> Any:
            device = self.owner[id(params[0])]
            self.log.append(("layer", device, number, nbytes(X), 0))
            out = yield from layer.forward(B, params, X, part)
            self.log.append(("out", device, number, nbytes(out)))
            return out

        return layer._replace(forward=forward)

    def optimizer(self) -> d2lmulti.SGD:
        """Return an SGD that reports on which device it has updated."""
        listener = self

        class ListenedSGD(d2lmulti.SGD):
            def step_(self, params: Any, state: Any, lr: float, n: int) -> None:
                super().step_(params, state, lr, n)
                listener.log.append(("update", listener.owner[id(params[0])]))

        return ListenedSGD()


def number_of(layer: str) -> int:
    """Return the number of a layer from its name, `dense 3`."""
    return int(layer.rpartition(" ")[2])
