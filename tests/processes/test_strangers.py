"""Nobody else takes part: what listens, and what a stranger who connects can do."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes.sockets import Listener, listeners, outside

import d2lmulti
from d2lmulti.backends import get_backend
from d2lmulti.backends.protocol import Backend
from d2lmulti.errors import D2LMultiError
from d2lmulti.processes.launcher import launch
from d2lmulti.processes.mxnet_servers import launch_kvstore
from d2lmulti.processes.private_folder import check_private
from d2lmulti.processes.process_group import started
from d2lmulti.processes.spawn import ProcessFailed

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc"),
]
ENGINES = [
    pytest.param("shared_memory", "numpy", False, marks=pytest.mark.numpy),
    pytest.param("torch", "torch", False, marks=pytest.mark.torch),
    pytest.param("paddle", "paddle", False, marks=pytest.mark.paddle),
    pytest.param("paddle", "paddle", True, marks=pytest.mark.paddle),
    pytest.param("horovod", "torch", False, marks=pytest.mark.torch),
]


class Payload:
    """Once unpickled, it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple:
        return Path.touch, (self.trace,)


def text(of: bytes) -> bytes:
    return struct.pack("=Q", len(of)) + of


@contextmanager
def stranger(trace: Path, after: Path | None = None) -> Iterator[set[Listener]]:
    """Connect to every port that any of our processes opens, as soon as it is open.

    With `after`, only from when that file is there.

    One connection says nothing, the others send noise, and the commands with which
    stores of PyTorch and Paddle set a key to a pickle; all stay open until the end.
    """
    poison = pickle.dumps(Payload(trace), 0)
    words = [
        b"",
        b"\0",
        os.urandom(4096),
        bytes(4096),
        # Paddle: add to `init/` as the client of rank 1 does, then set a key.
        struct.pack("=i", 0) + text(b"/init/") + struct.pack("=q", 1)
        + struct.pack("=i", 3) + text(b"//0/0/rank1") + text(poison),
        # PyTorch: the magic number of its store, then a value.
        b"\0" + struct.pack("=I", 0x3C85F7CE) + b"\1" + text(b"init/") + text(poison),
        b"GET /rank_and_size/localhost/0 HTTP/1.0\r\n\r\n",
    ]  # fmt: skip
    met: set[Listener] = set()
    done, held = threading.Event(), []

    def knock() -> None:
        while not done.wait(0.005):
            if after and not after.exists():
                continue
            for one in set(listeners(os.getpid())) - before - met:
                met.add(one)
                for said in words:
                    try:
                        s = socket.create_connection((one.address, one.port), 1)
                        s.sendall(said)
                        held.append(s)
                    except OSError:  # it is closed again, or has refused us
                        continue

    before = set(listeners(os.getpid()))
    thread = threading.Thread(target=knock)
    thread.start()
    try:
        yield met
    finally:
        done.set()
        thread.join()
        for s in held:
            s.close()


def work(running: str) -> tuple[list[float], list[str], list[Listener]]:
    """Use all that an engine has; tell who listens meanwhile."""
    group, B = started(), get_backend()
    assert group is not None
    rank, engine = group.local_ranks[0], group.engine
    xs = []
    for _ in range(3):
        xs.append(B.array([1.0 + rank]))
        d2lmulti.allreduce([xs[-1]], "native")
        if engine.point_to_point:
            d2lmulti.allreduce([xs[-1]], "ring")
        if not rank:
            Path(running).touch()
            time.sleep(0.1)  # for strangers to come
    found = listeners(os.getppid()) if not rank else []
    told = engine.allgather_text(f"é of {rank}")  # nobody leaves before
    return [float(B.numpy(x)[0]) for x in xs], told, found


@pytest.mark.parametrize(("engine", "backend", "later"), ENGINES)
def test_strangers_get_nowhere(
    engine: str,
    backend: str,
    later: bool,
    load: Callable[[str], Backend],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    load(backend)
    if engine == "horovod":
        request.getfixturevalue("horovod")
    trace, running = tmp_path / "trace", tmp_path / "running"
    before, group = set(listeners(os.getpid())), {"engine": engine, "backend": backend}
    with stranger(trace, running if later else None) as met:
        try:
            run = launch(work, 2, str(running), **group, timeout=60)
        except ProcessFailed as error:
            # A port of gloo waits for as many connections as there are peers, and
            # takes whoever comes first. Horovod's gloo then ends the process.
            assert engine in ("torch", "paddle", "horovod") and not later
            want = "gloo::" if engine == "horovod" else "its engine gave up"
            assert want in str(error)
            assert not trace.exists() and outside([*met]) == []
            return
    found = set(run.values[0][2]) - before
    assert bool(met) == (engine != "shared_memory")  # they did come
    assert outside([*found, *met]) == []
    assert not trace.exists()
    want = 3.0 if engine == "horovod" else 6.0
    for sums, told, _ in run.values:
        assert sums == [want] * 3
        assert told == [f"é of {rank}" for rank in range(2)]


KVSTORE = """
import os, sys, time
import numpy as np
import d2lmulti
from d2lmulti.processes.mxnet_kvstore import KVStore

B = d2lmulti.get_backend("mxnet")
store = KVStore([B.array(np.zeros(2, "float32"))], 0.5)
time.sleep(0.2)
store.push(store.worker, [B.array(np.ones(2, "float32"))])
print(B.numpy(store.pull(store.worker)[0]).tolist())
"""


@pytest.mark.mxnet
def test_strangers_get_nowhere_at_a_parameter_server(load, tmp_path: Path) -> None:
    load("mxnet")
    trace = tmp_path / "trace"
    with stranger(trace) as met:
        try:
            assert launch_kvstore(KVSTORE) == ["[-1.0, -1.0]\n"] * 2
        except ProcessFailed as error:  # ZeroMQ reads some of the noise as a message
            assert "got SIGABRT from" in str(error)
    assert met and outside([*met]) == []
    assert not trace.exists()


@pytest.mark.mxnet
def test_a_parameter_server_unpickles_nothing(load, tmp_path: Path) -> None:
    load("mxnet")
    trace = tmp_path / "trace"
    poison = pickle.dumps(Payload(trace), 0).decode()
    program = KVSTORE + f"store._kv._send_command_to_servers(0, {poison!r})"
    with pytest.raises(ProcessFailed, match="from server 0") as caught:
        launch_kvstore(program, timeout=30)
    assert "JSONDecodeError" in str(caught.value)
    assert not trace.exists()


def test_another_users_folder_is_not_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    check_private(tmp_path)
    tmp_path.chmod(0o770)
    with pytest.raises(D2LMultiError, match="own folder with the mode 0700, got .*rwx"):
        check_private(tmp_path)
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(D2LMultiError, match="own folder with the mode 0700, got one"):
        check_private(tmp_path / "link")
