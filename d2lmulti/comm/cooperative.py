"""Models that communicate in the forward pass: generators that yield requests.

A collective never runs inside a recorded graph. So the graph is *cut* at every request:
its tensor ends one segment, and the answer starts the next one as a fresh leaf. The
backward pass runs the segments in reverse and carries the leaves' gradients across the
cuts. Chapter: *tensor_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from ..backends import backend_of
from ..backends.protocol import Backend, Tensor
from ..checks import check_same
from ..errors import InvalidInput
from ..events import notify
from ..plans.rounds import Plan
from .collectives import alltoall
from .group import Group, Op, start_allreduce
from .mesh import alone

# -- what a model may request ----------------------------------------------------------


@dataclass(frozen=True)
class CollectiveRequest:
    """Exchange `tensor` with all devices: `total, kept1 = yield Sum(x, keep=(y,))`.

    The recorded graph is cut here, so every other tensor that was computed since the
    last request and is used after this one must be in `keep`. Parameters and earlier
    answers need not be, because they are leaves. `layer` is a name for the ledger. On a
    mesh, "all devices" are those along `axis`, by default `tensor`.
    """

    tensor: Any
    keep: tuple[Any, ...] = ()
    layer: str = ""
    axis: str = ""

    forward: ClassVar[str]  # the name of a collective; see `_collect`
    backward: ClassVar[str]


class Sum(CollectiveRequest):
    """Sum over all devices, each of which continues with *its own* work and loss."""

    forward, backward = "all-reduce", "all-reduce"


class Copy(CollectiveRequest):
    """Use the same tensor on every device, each in its part of a layer: operator f.

    Each part returns a partial gradient. Source: Shoeybi et al. (2019).
    """

    forward, backward = "identity", "all-reduce"


class Reduce(CollectiveRequest):
    """Sum the parts of a layer, and continue with the same on every device: operator g.

    Every device then computes the whole loss, so its gradient is not summed again.
    """

    forward, backward = "all-reduce", "identity"


class AllToAll(CollectiveRequest):
    """Exchange blocks of rows: block t of rank s becomes block s of rank t.

    The gradients return the same way. Source: Lepikhin et al. (2020).
    """

    forward, backward = "all-to-all", "all-to-all"


class Max(CollectiveRequest):
    """Take the maximum over all devices, as a constant without a gradient."""

    forward, backward = "max", "none"


@dataclass(frozen=True)
class Apply(CollectiveRequest):
    """Compute with all devices by a function that has its own backward pass.

    `function(tensors, group)` takes one tensor per local rank of the group. It returns
    one result for each, and a function from their gradients to those of `tensors`.
    """

    function: Any = None

    forward, backward = "function", "function"


CommGenerator = Generator[CollectiveRequest, Any, Tensor]
Backward = Callable[[list[Tensor]], Sequence[Tensor]]

# -- the ranks that run a model --------------------------------------------------------


class Ranks(NamedTuple):
    """The local ranks that run a model, and with whom they communicate along an axis.

    `lines(axis)` returns groups, each with the indices of its local ranks in `ranks`.
    """

    ranks: Sequence[int]
    lines: Callable[[str], Iterable[tuple[Group, list[int]]]]

    @classmethod
    def of(cls, group: Group) -> Ranks:
        """Return the ranks of one group; along a named axis each of them is alone."""
        ranks = group.local_ranks

        def lines(axis: str) -> list[tuple[Group, list[int]]]:
            if axis:
                return [(alone(rank, group), [i]) for i, rank in enumerate(ranks)]
            return [(group, list(range(len(ranks))))]

        return cls(ranks, lines)


class _GraphCut(NamedTuple):
    """One request of every local rank, and its answer: [answer, *kept]."""

    requests: list[CollectiveRequest]
    answers: list[list[Tensor]]
    backwards: list[Backward]  # of an `Apply`: one per group


@dataclass
class Segments:
    """The graph cuts of one forward pass, in order, and the backward pass."""

    B: Backend
    algorithm: str | Plan
    ranks: Ranks
    cuts: list[_GraphCut] = field(default_factory=list)

    def answer(self, requests: list[CollectiveRequest]) -> list[list[Tensor]]:
        """Answer one request of every local rank; return [answer, *kept] for each."""
        B, request = self.B, requests[0]
        with B.pause():
            tensors = [B.detach(r.tensor) for r in requests]
            if request.forward in ("all-reduce", "all-to-all", "max"):  # in place
                tensors = [B.copy_to(x, B.device_of(x)) for x in tensors]
            backwards: list[Backward] = []
            results = self._communicate(request, tensors, backwards)
            answers = [
                [result, *(B.detach(kept) for kept in r.keep)]
                for result, r in zip(results, requests, strict=True)
            ]
        for answer in answers:
            for x in answer:
                B.attach_grad(x)
        self.cuts.append(_GraphCut(requests, answers, backwards))
        return answers

    def backward(
        self, losses: Sequence[Tensor], dys: Sequence[Tensor] | None = None
    ) -> None:
        """Run backward from the losses (one per local rank) through every segment.

        Outputs that are not losses, but those of some of the layers, need their
        gradients `dys`.
        """
        B = self.B
        B.backward(losses, dys)
        for requests, answers, backwards in reversed(self.cuts):
            request = requests[0]
            ys = [kept for r in requests for kept in r.keep]
            dys = [B.grad(x) for answer in answers for x in answer[1:]]
            if request.backward != "none":
                grads = [B.grad(answer[0]) for answer in answers]
                ys += [r.tensor for r in requests]
                dys += self._communicate(request, grads, backwards, forward=False)
            if ys:
                B.backward(ys, dys)

    def _communicate(
        self,
        request: CollectiveRequest,
        xs: list[Tensor],
        backwards: list[Backward],
        forward: bool = True,
    ) -> Sequence[Tensor]:
        """Run one collective in every group and mark it; some work in place.

        An `Apply` adds its backward passes to `backwards`, and uses them later.
        """
        collective = request.forward if forward else request.backward
        if collective == "identity":
            return xs
        results = list(xs)
        for number, (group, indices) in enumerate(self.ranks.lines(request.axis)):
            local: Sequence[Tensor] = [xs[i] for i in indices]
            if isinstance(request, Apply) and forward:
                local, backward = request.function(local, group)
                backwards.append(backward)
            elif isinstance(request, Apply):
                with self.B.pause():
                    local = backwards[number](list(local))
            elif collective == "all-to-all":
                alltoall(local, group)
            else:
                op: Op = "max" if collective == "max" else "sum"
                start_allreduce(local, self.algorithm, group, op).wait()
            for i, x in zip(indices, local, strict=True):
                results[i] = x
        direction = "forward" if forward else "backward"
        notify("on_mark", f"{request.layer or type(request).__name__} {direction}")
        return results


def run_cooperatively(
    B: Backend,
    forwards: Sequence[Generator],
    group: Group | Ranks,
    algorithm: str | Plan = "star",
) -> tuple[list[Tensor], Segments]:
    """Run one forward pass per local rank; return the outputs and the backward pass.

    Each of `forwards` is a generator that yields requests and returns its output.
    Raises `InvalidInput`, naming ranks and requests, when ranks make different requests
    or some have finished, and for anything that is not a request. Along an axis of a
    mesh, tensors must agree in shape; elsewhere, requests in type.
    """
    ranks = group if isinstance(group, Ranks) else Ranks.of(group)
    segments = Segments(B, algorithm, ranks)
    answers: Sequence[Any] = [None] * len(forwards)
    while True:
        outputs: list[Tensor] = []
        requests: dict[int, CollectiveRequest] = {}
        for rank, forward, answer in zip(ranks.ranks, forwards, answers, strict=True):
            try:
                requests[rank] = forward.send(answer)
            except StopIteration as stop:
                outputs.append(stop.value)
        if not requests:
            return outputs, segments
        _check_alike(ranks, requests)
        answers = [tuple(answer) for answer in segments.answer([*requests.values()])]


def together(
    forward: Callable[[Backend, Sequence[Tensor], Tensor], CommGenerator],
    buffers: int = 0,
) -> Callable[..., tuple[list[Tensor], Callable[..., None]]]:
    """Turn a forward pass that yields requests into a `Model.together`.

    The last `buffers` parameters are statistics without gradients.
    """

    def run(
        B: Backend,
        replicas: Sequence[Sequence[Tensor]],
        shards: Sequence[Tensor],
        group: Group,
        algorithm: str | Plan,
    ) -> tuple[list[Tensor], Callable[..., None]]:
        forwards = []
        for params, X in zip(replicas, shards, strict=True):
            count = len(params) - buffers
            leaves = B.accumulating(params[:count])  # there is one pass per segment
            forwards.append(forward(B, [*leaves, *params[count:]], X))
        logits, segments = run_cooperatively(B, forwards, group, algorithm)
        return logits, segments.backward

    return run


def _check_alike(ranks: Ranks, requests: dict[int, CollectiveRequest]) -> None:
    """Raise `InvalidInput` if ranks make different requests, or some have finished."""
    end = "the end of the model"
    words = {rank: _in_words(request) for rank, request in requests.items()}
    axis = next(iter(requests.values())).axis
    wording = "every rank to make the same requests", "run the same model on every rank"
    for _, indices in ranks.lines(axis):
        members = [ranks.ranks[i] for i in indices]
        check_same({rank: words.get(rank, end) for rank in members}, *wording)
    kinds = {
        rank: _kind(requests[rank]) if rank in requests else end for rank in ranks.ranks
    }
    check_same(kinds, *wording)


def _kind(request: CollectiveRequest) -> str:
    where = f" in {request.layer}" if request.layer else ""
    along = f" along {request.axis}" if request.axis else ""
    return f"{type(request).__name__}{along}{where}"


def _in_words(request: Any) -> str:
    if not isinstance(request, CollectiveRequest):
        raise InvalidInput(
            f"expected a model to yield a request, got {type(request).__name__}; yield "
            "Sum(tensor, keep=(...)) or another of comm.cooperative"
        )
    if isinstance(request, Apply):  # its function checks; ranks may differ in tokens
        return _kind(request)
    B = backend_of(request.tensor)
    shape, dtype = tuple(request.tensor.shape), B.dtype_of(request.tensor)
    name, _, where = _kind(request).partition(" ")
    return f"{name} of {shape} {dtype} {where}".rstrip()
