"""paddle.distributed as an engine: gloo for CPU tensors, nccl for GPUs.

Paddle's gloo waits in every send until the receiver is there, so a round's messages go
in turns (see `plans.matching`). Chapter: *many_machines*.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist

from ...backends import checks
from ...backends import paddle as B
from ...backends.protocol import Tensor
from ...errors import InvalidInput
from ...plans.matching import Share, share_of
from ...plans.rounds import Round
from ..place import Place
from ..watch import Watch
from . import Combine


def connect(place: Place) -> PaddleDistributed:
    """Join the process group that the launcher's environment describes."""
    return PaddleDistributed(place)


class PaddleDistributed:
    """The transport of one rank; nccl is used where every local rank has a GPU."""

    name = "paddle"
    point_to_point = True
    native = frozenset({"allreduce", "allgather", "broadcast"})

    def __init__(self, place: Place) -> None:
        self.rank, self.size = place.rank, place.size
        self._watch = Watch(place)
        enough = B.gpu_count() >= place.local_size
        self._home = f"gpu:{place.local_rank}" if enough else "cpu"
        _complete_environment(place, gloo=self._home == "cpu")
        if place.rank and os.environ["PADDLE_MASTER"].startswith("127.0.0.1:"):
            _wait_for_listener(int(os.environ["PADDLE_MASTER"].rpartition(":")[2]))
        with self._watch.waiting(), contextlib.redirect_stderr(io.StringIO()):
            dist.init_parallel_env()  # writes which flags differ from their defaults
            self._pairs = _pair_up(place)

    def begin(self, call: str) -> None:
        """Note that this rank makes its next call."""
        self._watch.begin(call)

    def exchange(
        self, data: Sequence[Any], round: Round, combine: Combine = "sum"
    ) -> None:
        """Carry out this rank's share of a round, in place."""
        x, share = data[0].detach(), share_of(round, self.rank)
        if not share.peers:
            return
        checks.contiguous(x.is_contiguous())
        with self._watch.waiting(*share.peers), paddle.no_grad():
            if B.device_of(x) == self._home:
                self._take_turns(x, share, combine)
            else:  # the engine sends from there only
                moved = B.copy_to(x, self._home)
                self._take_turns(moved, share, combine)
                B.write_(x, 0, moved.size, moved)

    def run_native(self, what: str, data: Sequence[Any], op: Combine = "sum") -> Any:
        """Run a collective of the engine; a broadcast is from rank 0."""
        return self.start_native(what, data, op)()

    def start_native(
        self, what: str, data: Sequence[Any], op: Combine = "sum"
    ) -> Callable[[], Any]:
        """Begin a collective of the engine; the function that comes back ends it."""
        x = data[0].detach()
        checks.contiguous(x.is_contiguous())
        at_home = B.device_of(x) == self._home
        y = x if at_home else B.copy_to(x, self._home)
        result: list[Tensor] = []
        with self._watch.waiting():
            if what == "allreduce":
                how = dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM
                work = dist.all_reduce(y, how, sync_op=False)
            elif what == "broadcast":
                work = dist.broadcast(y, 0, sync_op=False)
            elif what == "allgather":
                work = dist.all_gather(result, y, sync_op=False)
            else:
                raise InvalidInput(
                    f"expected one of {', '.join(sorted(self.native))} as native "
                    f"collective of {self.name}, got {what!r}; run a plan"
                )

        def end() -> Any:
            with self._watch.waiting():
                work.wait()
            if not at_home:
                B.write_(x, 0, y.size, y)
            return [B.copy_to(part, B.device_of(x)) for part in result] or None

        return end

    def tell_all(self, text: str) -> list[str]:
        """Give every rank's short text to every rank, in rank order."""
        self.begin("tell_all")
        mine = np.frombuffer(text.encode(), np.uint8)
        sizes = self._gather(np.array([len(mine)]))
        padded = np.zeros(max(1, *(int(size[0]) for size in sizes)), np.uint8)
        padded[: len(mine)] = mine
        texts = zip(self._gather(padded), sizes, strict=True)
        return [found[: int(size[0])].tobytes().decode() for found, size in texts]

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        found = self.run_native("allgather", [B.array(values, self._home)])
        return [B.numpy(x) for x in found]

    def _take_turns(self, x: Tensor, share: Share, combine: Combine) -> None:
        """Send and receive in the order of the turns, then add in that of the rows."""
        kept = {m: B.copy_to(B.read(x, m.first, m.last), self._home)
                for m in share.sends if m.clashes}  # fmt: skip
        aside = {}
        for m in sorted((*share.sends, *share.receives), key=lambda m: m.turn):
            if m in share.sends:
                part = kept.get(m)
                part = B.read(x, m.first, m.last) if part is None else part
                dist.send(part, m.peer, self._pairs[m.peer])
                continue
            part = B.read(x, m.first, m.last)
            straight = not m.add and not m.clashes and part._is_shared_buffer_with(x)
            if not straight:
                part = aside[m] = paddle.empty_like(part)
            dist.recv(part, m.peer, self._pairs[m.peer])
        for m in sorted(aside):  # additions in the order of their sources
            if m.add and combine == "max":
                B.maximum_(x, m.first, m.last, aside[m])
            else:
                B.write_(x, m.first, m.last, aside[m], add=m.add)


def _pair_up(place: Place) -> dict[int, Any]:
    """Make a group of each pair of ranks; give those of this rank, by the other one.

    Paddle's gloo matches a send with a receive by counting all messages of a group. In
    a group of two, both count the same.
    """
    if place.size == 2:
        return {1 - place.rank: None}  # the whole group
    pairs = {}
    for a, b in combinations(range(place.size), 2):  # in one order on all ranks
        group = dist.new_group([a, b])
        if place.rank in (a, b):
            pairs[a + b - place.rank] = group
    dist.barrier()  # rank 0 keeps the addresses: nobody leaves before all are paired
    return pairs


def _complete_environment(place: Place, gloo: bool) -> None:
    """Say in Paddle's words what another launcher said in its own."""
    words = {
        "PADDLE_TRAINER_ID": str(place.rank),
        "PADDLE_TRAINERS_NUM": str(place.size),
        "PADDLE_CURRENT_ENDPOINT": f"127.0.0.1:{place.rank}",  # only has to be there
    }
    if "MASTER_ADDR" in os.environ:
        address = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        words["PADDLE_MASTER"] = ":".join(address)
    if gloo:
        words["PADDLE_DISTRI_BACKEND"] = "gloo"
    else:
        words["FLAGS_selected_gpus"] = str(place.local_rank)
    for name, value in words.items():
        os.environ.setdefault(name, value)


def _wait_for_listener(port: int, seconds: float = 20.0) -> None:
    """Wait until someone listens on a port of this machine: Paddle retries slowly."""
    table, until = Path("/proc/net/tcp"), time.monotonic() + seconds
    ending = f":{port:04X}"
    while table.exists() and time.monotonic() < until:
        rows = (line.split() for line in table.read_text().splitlines()[1:])
        if any(row[1].endswith(ending) and row[3] == "0A" for row in rows):
            return
        time.sleep(0.02)
