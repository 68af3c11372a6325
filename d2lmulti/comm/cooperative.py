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
from ..errors import InvalidInput
from ..events import mark
from ..plans.requests import Collective, CollectiveRequest
from ..plans.rounds import Plan
from .agreement import check_same
from .allreduce import Op, start_allreduce
from .collectives import allgather, alltoall, reduce_scatter
from .group import Group


@dataclass
class Segments:
    """The cuts of one forward pass, in order, and the way back through them."""

    B: Backend
    algorithm: str | Plan
    group: Group
    cuts: list[tuple[list[CollectiveRequest], list[list[Tensor]]]] = field(
        default_factory=list
    )

    def cut(self, calls: list[CollectiveRequest]) -> list[list[Tensor]]:
        """Answer one call of every local rank; return [answer, *kept] for each."""
        B, call = self.B, calls[0]
        with B.pause():
            tensors = [B.detach(c.tensor) for c in calls]
            if call.forward in ("all-reduce", "all-to-all", "max"):  # in place
                tensors = [B.copy_to(x, B.device_of(x)) for x in tensors]
            carried = self._carry(call.forward, tensors, call, "forward")
            answers = [
                [answer, *(B.detach(kept) for kept in c.keep)]
                for answer, c in zip(carried, calls, strict=True)
            ]
        for answer in answers:
            for x in answer:
                B.attach_grad(x)
        self.cuts.append((calls, answers))
        return answers

    def backward(
        self, losses: Sequence[Tensor], dys: Sequence[Tensor] | None = None
    ) -> None:
        """Go backward from the losses (one per local rank) through every segment.

        What is no loss, the output of some of the layers, comes with its gradients.
        """
        B = self.B
        B.backward(losses, dys)
        for calls, answers in reversed(self.cuts):
            call = calls[0]
            ys = [kept for c in calls for kept in c.keep]
            dys = [B.grad(x) for answer in answers for x in answer[1:]]
            if call.backward != "none":
                grads = [B.grad(answer[0]) for answer in answers]
                ys += [c.tensor for c in calls]
                dys += self._carry(call.backward, grads, call, "backward")
            if ys:
                B.backward(ys, dys)

    def _carry(
        self,
        what: Collective,
        xs: list[Tensor],
        call: CollectiveRequest,
        direction: str,
    ) -> Sequence[Tensor]:
        """Carry out one collective, and mark it; some work in place."""
        if what == "identity":
            return xs
        if what == "all-gather":
            xs = allgather(xs, self.group)
        elif what == "reduce-scatter":
            rows = _rows_of_each(xs[0], self.group.size, call)
            shape = (rows, *xs[0].shape[1:])
            parts = reduce_scatter(xs, self.group)
            xs = [part.reshape(shape) for part in parts]
        elif what == "all-to-all":
            alltoall(xs, self.group)
        else:
            op: Op = "max" if what == "max" else "sum"
            start_allreduce(xs, self.algorithm, self.group, op).wait()
        mark(f"{call.layer or type(call).__name__} {direction}")
        return xs


def _rows_of_each(x: Tensor, ranks: int, call: CollectiveRequest) -> int:
    if len(x) % ranks:
        raise InvalidInput(
            f"cannot scatter the {len(x)} rows of {call.layer or 'a call'} over "
            f"{ranks} devices, because {ranks} does not divide them; use a batch with "
            f"a multiple of {ranks} tokens"
        )
    return len(x) // ranks


def run_cooperatively(
    B: Backend,
    forwards: Sequence[Generator],
    group: Group,
    algorithm: str | Plan = "star",
) -> tuple[list[Tensor], Segments]:
    """Run one forward pass per local rank; return the outputs and the way back.

    Each of `forwards` is a generator that yields calls (see `plans.requests`) and
    returns its output. Raises `InvalidInput`, naming ranks and calls, when ranks make
    different calls or one of them has finished, and for what is no call.
    """
    segments = Segments(B, algorithm, group)
    answers: Sequence[Any] = [None] * len(forwards)
    while True:
        outputs: dict[int, Tensor] = {}
        calls: dict[int, CollectiveRequest] = {}
        steps = zip(group.local_ranks, forwards, answers, strict=True)
        for rank, forward, answer in steps:
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
    if not isinstance(call, CollectiveRequest):
        raise InvalidInput(
            f"expected a model to yield a call, got {type(call).__name__}; yield "
            "Sum(tensor, keep=(...)) or another of plans.requests"
        )
    B = backend_of(call.tensor)
    where = f" in {call.layer}" if call.layer else ""
    shape, dtype = tuple(call.tensor.shape), B.dtype_of(call.tensor)
    return f"{type(call).__name__} of {shape} {dtype}{where}"
