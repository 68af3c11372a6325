"""Advance one forward pass per device together, and meet wherever they must talk.

A collective never runs inside a recorded graph. So the graph is *cut* at every call:
what goes in ends one segment, what comes out starts the next as a fresh leaf. Backward
runs the segments in reverse and carries the leaves' gradients across the cuts.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..backends import backend_of
from ..backends.protocol import Backend, Tensor
from ..comm.agreement import check_same
from ..comm.collectives import allreduce
from ..comm.group import Group
from ..errors import InvalidInput
from ..plans.calls import Sum


@dataclass
class Segments:
    """The cuts of one forward pass, in order, and the way back through them."""

    B: Backend
    algorithm: str
    group: Group
    cuts: list[tuple[list[Sum], list[list[Tensor]]]] = field(default_factory=list)

    def cut(self, calls: list[Sum]) -> list[list[Tensor]]:
        """Answer one call of every local rank; return [total, *kept] for each."""
        B = self.B
        with B.pause():
            totals = [B.copy_to(c.tensor, B.device_of(c.tensor)) for c in calls]
            allreduce(totals, self.algorithm, self.group)
            answers = [
                [total, *(B.detach(kept) for kept in call.keep)]
                for total, call in zip(totals, calls, strict=True)
            ]
        for answer in answers:
            for x in answer:
                B.attach_grad(x)
        self.cuts.append((calls, answers))
        return answers

    def backward(self, losses: Sequence[Tensor]) -> None:
        """Go backward from the losses (one per local rank) through every segment."""
        B = self.B
        B.backward(losses)
        for calls, answers in reversed(self.cuts):
            grads = [[B.grad(x) for x in answer] for answer in answers]
            # A total depends on every rank's input, so its gradient is summed too.
            allreduce([g[0] for g in grads], self.algorithm, self.group)
            B.backward(
                [x for call in calls for x in (call.tensor, *call.keep)],
                [dx for g in grads for dx in g],
            )


def run_lockstep(
    B: Backend, forwards: Sequence[Any], group: Group, algorithm: str = "star"
) -> tuple[list[Tensor], Segments]:
    """Run one forward pass per local rank; return the outputs and the way back.

    Each of `forwards` is a finished output (of a model that needs no one else) or a
    generator that yields `Sum` calls. Raises `InvalidInput`, naming ranks and calls,
    when ranks make different calls or one of them has finished, and for a call that
    is no `Sum`.
    """
    segments = Segments(B, algorithm, group)
    if not any(isinstance(f, Generator) for f in forwards):
        return list(forwards), segments
    answers: Sequence[Any] = [None] * len(forwards)
    while True:
        outputs: dict[int, Tensor] = {}
        calls: dict[int, Sum] = {}
        steps = zip(group.local_ranks, forwards, answers, strict=True)
        for rank, forward, answer in steps:
            if not isinstance(forward, Generator):
                outputs[rank] = forward
                continue
            try:
                calls[rank] = forward.send(answer)
            except StopIteration as stop:
                outputs[rank] = stop.value
        if not calls:
            return list(outputs.values()), segments
        words = {rank: _in_words(call) for rank, call in calls.items()}
        check_same(
            {**words, **dict.fromkeys(outputs, "the end of the model")},
            "every rank to make the same calls",
            "run the same model on every rank",
        )
        answers = [tuple(answer) for answer in segments.cut(list(calls.values()))]


def _in_words(call: Any) -> str:
    if not isinstance(call, Sum):
        raise InvalidInput(
            f"expected a model to yield Sum calls, got {type(call).__name__}; yield "
            "Sum(tensor, keep=(...))"
        )
    B = backend_of(call.tensor)
    return f"Sum of {tuple(call.tensor.shape)} {B.dtype_of(call.tensor)}"
