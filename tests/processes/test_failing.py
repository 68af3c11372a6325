"""Whatever happens to a rank: it is named within seconds, and nothing is left.

And while all is well, nobody from another machine can connect.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes.failing import ENGINES, FAULTS, cases

import d2lmulti
from d2lmulti.processes.launcher import launch
from d2lmulti.processes.mxnet_servers import launch_kvstore
from d2lmulti.processes.process_group import started

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc"),
]
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
# What watches the ranks is the same for all engines, so in CI not each fault happens on
# each of them.
SOME = {
    "shared_memory": ("killed", "exit 0", "full disk"),
    "torch": ("killed", "exit 0", "exception"),
    "paddle": ("exit 0",),
    "horovod": (),
    "kvstore": ("killed", "exit 0"),
}
PAIRS = [
    pytest.param(engine, fault, marks=getattr(pytest.mark, ENGINES[engine]))
    for engine in ENGINES
    for fault in (cases(engine) if LONG else SOME[engine])
]


@pytest.mark.parametrize(("engine", "fault"), PAIRS)
def test_a_fault_is_named_in_time(
    engine: str, fault: str, load: Callable, need: Callable, tmp_path: Path
) -> None:
    load(ENGINES[engine])
    if engine == "horovod":
        need(engine)
    assert not cases(engine)[fault](tmp_path).wrong


def test_every_fault_happens_somewhere() -> None:
    happened = {fault for faults in SOME.values() for fault in faults}
    assert happened == {*FAULTS, "full disk"}


def listening() -> list[str]:
    """Return the addresses on which the processes of this launcher listen."""
    import psutil

    return [
        connection.laddr.ip
        for process in psutil.Process(os.getppid()).children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


KVSTORE = """
import json, sys
import numpy as np
import d2lmulti
from d2lmulti.processes.mxnet_kvstore import KVStore
sys.path[:0] = sys.argv[1:]
from processes.test_failing import listening

B = d2lmulti.get_backend("mxnet")
store = KVStore([B.array(np.zeros(2, "float32"))], 0.5)
print(json.dumps(listening()))
store.push(store.worker, [B.array(np.ones(2, "float32"))])
store.pull(store.worker)
"""


@pytest.mark.parametrize(
    ("engine", "backend"),
    [
        pytest.param(engine, backend, marks=getattr(pytest.mark, backend))
        for engine, backend in (  # for Paddle see test_engines
            ("torch", "torch"), ("horovod", "torch"), ("kvstore", "mxnet"),
        )
    ],
)  # fmt: skip
def test_they_listen_on_the_loopback_address_alone(
    engine: str, backend: str, load: Callable, need: Callable
) -> None:
    pytest.importorskip("psutil")
    load(backend)

    def work() -> list[str]:
        d2lmulti.allreduce([d2lmulti.get_backend().array([1.0])], "native")
        found = listening()
        started().engine.allgather_text("nobody leaves before")
        return found

    if engine == "horovod":
        need(engine)
    if engine == "kvstore":
        outputs = launch_kvstore(KVSTORE, arguments=list(filter(None, sys.path)))
        found = [json.loads(output) for output in outputs]
    else:
        found = launch(work, 2, engine=engine, backend=backend).values
    addresses = {address for each in found for address in each}
    assert addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
