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
from processes.failing import ENGINES, cases

from d2lmulti.processes.launcher import launch_kvstore

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


@pytest.mark.mxnet
def test_the_stores_processes_listen_on_the_loopback_address_alone(
    load: Callable,
) -> None:
    """Of the other engines, `test_engines` and `test_horovod` ask."""
    pytest.importorskip("psutil")
    load("mxnet")
    outputs = launch_kvstore(KVSTORE, arguments=list(filter(None, sys.path)))
    addresses = {address for output in outputs for address in json.loads(output)}
    assert addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
