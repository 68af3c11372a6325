"""Advance one forward pass per device together, and meet wherever they must talk.

A collective never runs inside a recorded graph. So the graph is *cut* at every call:
what goes in ends one segment, what comes out starts the next as a fresh leaf. Backward
runs the segments in reverse and carries the leaves' gradients across the cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..backends import backend_of
from ..backends.protocol import Backend, Tensor
from ..checks import check_same
from ..errors import InvalidInput
from ..events import notify_mark
from ..plans.requests import Apply, Collective, CollectiveRequest
from ..plans.rounds import Plan
from .allreduce import Op, start_allreduce
from .collectives import allgather, alltoall, reduce_scatter
from .group import Group
from .subgroups import alone

Back = Callable[[list[Tensor]], Sequence[Tensor]]


class Ranks(NamedTuple):
    """Who runs a model here, and with whom they talk along an axis.

    `lines(axis)` gives groups, each with the places of its local ranks in `ranks`.
    """

    ranks: Sequence[int]
    lines: Callable[[str], Iterable[tuple[Group, list[int]]]]

    @classmethod
    def of(cls, group: Group) -> Ranks:
        """Let all of one group talk; a call along an axis finds each rank alone."""
        ranks = group.local_ranks

        def lines(axis: str) -> list[tuple[Group, list[int]]]:
            if axis:
                return [(alone(rank, group), [i]) for i, rank in enumerate(ranks)]
            return [(group, list(range(len(ranks))))]

        return cls(ranks, lines)


class Cut(NamedTuple):
    """One call of every local rank, and what it was answered: [answer, *kept]."""

    calls: list[CollectiveRequest]
    answers: list[list[Tensor]]
    backs: list[Back]  # of a function: its way back in each group


@dataclass
class Segments:
    """The cuts of one forward pass, in order, and the way back through them."""

    B: Backend
    algorithm: str | Plan
    ranks: Ranks
    cuts: list[Cut] = field(default_factory=list)

    def cut(self, calls: list[CollectiveRequest]) -> list[list[Tensor]]:
        """Answer one call of every local rank; return [answer, *kept] for each."""
        B, call = self.B, calls[0]
        with B.pause():
            tensors = [B.detach(c.tensor) for c in calls]
            if call.forward in ("all-reduce", "all-to-all", "max"):  # in place
                tensors = [B.copy_to(x, B.device_of(x)) for x in tensors]
            backs: list[Back] = []
            carried = self._carry(call.forward, tensors, call, backs, "forward")
            answers = [
                [answer, *(B.detach(kept) for kept in c.keep)]
                for answer, c in zip(carried, calls, strict=True)
            ]
        for answer in answers:
            for x in answer:
                B.attach_grad(x)
        self.cuts.append(Cut(calls, answers, backs))
        return answers

    def backward(
        self, losses: Sequence[Tensor], dys: Sequence[Tensor] | None = None
    ) -> None:
        """Go backward from the losses (one per local rank) through every segment.

        What is no loss, the output of some of the layers, comes with its gradients.
        """
        B = self.B
        B.backward(losses, dys)
        for calls, answers, backs in reversed(self.cuts):
            call = calls[0]
            ys = [kept for c in calls for kept in c.keep]
            dys = [B.grad(x) for answer in answers for x in answer[1:]]
            if call.backward != "none":
                grads = [B.grad(answer[0]) for answer in answers]
                ys += [c.tensor for c in calls]
                dys += self._carry(call.backward, grads, call, backs, "backward")
            if ys:
                B.backward(ys, dys)

    def _carry(
        self,
        what: Collective,
        xs: list[Tensor],
        call: CollectiveRequest,
        backs: list[Back],
        direction: str,
    ) -> Sequence[Tensor]:
        """Carry out one collective in every group, and mark it; some work in place."""
        if what == "identity":
            return xs
        found = list(xs)
        for number, (group, at) in enumerate(self.ranks.lines(call.axis)):
            made: Sequence[Tensor] = [xs[i] for i in at]
            if not isinstance(call, Apply):
                made = self._collect(what, list(made), call, group)
            elif call.function and direction == "forward":
                made, back = call.function(made, group)
                backs.append(back)
            else:
                with self.B.pause():
                    made = backs[number](list(made))
            for i, x in zip(at, made, strict=True):
                found[i] = x
        notify_mark(f"{call.layer or type(call).__name__} {direction}")
        return found

    def _collect(
        self, what: Collective, xs: list[Tensor], call: CollectiveRequest, group: Group
    ) -> list[Tensor]:
        if what == "all-gather":
            return allgather(xs, group)
        if what == "reduce-scatter":
            rows = _rows_of_each(xs[0], group.size, call)
            shape = (rows, *xs[0].shape[1:])
            return [part.reshape(shape) for part in reduce_scatter(xs, group)]
        if what == "all-to-all":
            alltoall(xs, group)
        else:
            op: Op = "max" if what == "max" else "sum"
            start_allreduce(xs, self.algorithm, group, op).wait()
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
    group: Group | Ranks,
    algorithm: str | Plan = "star",
) -> tuple[list[Tensor], Segments]:
    """Run one forward pass per local rank; return the outputs and the way back.

    Each of `forwards` is a generator that yields calls (see `plans.requests`) and
    returns its output. Raises `InvalidInput`, naming ranks and calls, when ranks make
    different calls or one of them has finished, and for what is no call. Along an axis
    of a mesh, tensors must be alike; elsewhere, calls.
    """
    ranks = group if isinstance(group, Ranks) else Ranks.of(group)
    segments = Segments(B, algorithm, ranks)
    answers: Sequence[Any] = [None] * len(forwards)
    while True:
        outputs: dict[int, Tensor] = {}
        calls: dict[int, CollectiveRequest] = {}
        steps = zip(ranks.ranks, forwards, answers, strict=True)
        for rank, forward, answer in steps:
            try:
                calls[rank] = forward.send(answer)
            except StopIteration as stop:
                outputs[rank] = stop.value
        if not calls:
            return list(outputs.values()), segments
        _check_alike(ranks, calls)
        answers = [tuple(answer) for answer in segments.cut(list(calls.values()))]


def _check_alike(ranks: Ranks, calls: dict[int, CollectiveRequest]) -> None:
    """Refuse other calls on some ranks; whoever made none is at the end."""
    end = "the end of the model"
    words = {rank: _in_words(call) for rank, call in calls.items()}
    axis = next(iter(calls.values())).axis
    what = "every rank to make the same calls", "run the same model on every rank"
    for _, at in ranks.lines(axis):
        check_same({ranks.ranks[i]: words.get(ranks.ranks[i], end) for i in at}, *what)
    kinds = {rank: _kind(calls[rank]) if rank in calls else end for rank in ranks.ranks}
    check_same(kinds, *what)


def _kind(call: CollectiveRequest) -> str:
    where = f" in {call.layer}" if call.layer else ""
    along = f" along {call.axis}" if call.axis else ""
    return f"{type(call).__name__}{along}{where}"


def _in_words(call: Any) -> str:
    if not isinstance(call, CollectiveRequest):
        raise InvalidInput(
            f"expected a model to yield a call, got {type(call).__name__}; yield "
            "Sum(tensor, keep=(...)) or another of plans.requests"
        )
    if isinstance(call, Apply):  # ranks may differ in tokens; the function will see
        return _kind(call)
    B = backend_of(call.tensor)
    shape, dtype = tuple(call.tensor.shape), B.dtype_of(call.tensor)
    name, _, where = _kind(call).partition(" ")
    return f"{name} of {shape} {dtype} {where}".rstrip()
