"""MXNet's real parameter server: scheduler, servers and workers as processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from d2lmulti.backends.protocol import Backend
from d2lmulti.optimizers import SGD
from d2lmulti.parallel.parameter_server import ParameterServer
from d2lmulti.processes.launcher import launch_kvstore
from d2lmulti.processes.spawn import ProcessFailed

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(sys.platform != "linux", reason="its wheel is for Linux"),
]
TIMEOUT = 200  # seconds: five processes import MXNet, on a busy machine at that
# Both the workers' programs and the test in this process run these lines.
COMMON = """
import numpy as np
import d2lmulti
from d2lmulti.models.networks import initial_mlp, mlp

B = d2lmulti.get_backend("mxnet")
rng = np.random.default_rng(0)
start = [B.array(p.astype("float32")) for p in initial_mlp(rng, (20, 8, 3))]
X = rng.normal(size=(8, 20)).astype("float32")
y = rng.integers(0, 3, 8)

def gradient(params, worker, workers, n):
    with B.record():
        logits = mlp(B, params, B.array(X[worker::workers]))
        loss = B.cross_entropy(logits, B.array(y[worker::workers])).sum() / n
    B.backward([loss])
    return [B.grad(p) for p in params], float(B.numpy(loss))
"""
WORKER = (
    COMMON
    + """
import json, sys
from d2lmulti.processes.mxnet_kvstore import KVStore

kind, n = sys.argv[1], int(sys.argv[2])
store = KVStore(start, lr=0.1, kind=kind, momentum=0.5)
losses = []
for _ in range(6):
    params = store.pull(store.worker)
    grads, loss = gradient(params, store.worker, store.workers, n)
    store.push(store.worker, grads)
    losses.append(loss)
weights = [B.numpy(p).tolist() for p in store.pull(store.worker)]
refused = []
for call in (
    lambda: store.pull(store.worker + 1),
    lambda: KVStore([B.zeros((2,), "float64")], 0.1),
    lambda: KVStore(start, 0.1, kind="local"),
):
    try:
        call()
    except d2lmulti.errors.InvalidInput as error:
        refused.append(str(error))
print(json.dumps([store.worker, losses, weights, refused]))
"""
)


@pytest.fixture(autouse=True, scope="module")
def _mxnet(load: Callable[[str], Backend]) -> None:
    load("mxnet")  # skips where it is missing, fails where it is required


def in_process(workers: int) -> list[np.ndarray]:
    """Take the same six steps on our own server, or on one device."""
    names: dict = {}
    exec(COMMON, names)
    server = ParameterServer(names["start"], ["cpu"] * workers, 0.1, optimizer=SGD(0.5))
    for _ in range(6):
        pulled = [server.pull(worker) for worker in range(workers)]
        for worker, params in enumerate(pulled):
            grads, _ = names["gradient"](params, worker, workers, 8)
            server.push(worker, grads)
    return [names["B"].numpy(p) for p in server.weights()]


def listening() -> list[str]:
    """Return the addresses on which the processes of this launch listen."""
    psutil = pytest.importorskip("psutil")
    folder, found = os.environ["D2LMULTI_FOLDER"], []
    for process in psutil.Process(os.getppid()).children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if process.environ().get("D2LMULTI_FOLDER") == folder:
                found += process.net_connections("tcp")
    return [c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN]


LISTENING = """
sys.path[:0] = sys.argv[3:]
from processes.test_mxnet_kvstore import listening
print(json.dumps(listening()))
"""


def test_dist_sync_on_two_servers_equals_ours_and_one_device() -> None:
    """And of all its processes none listens to other machines."""
    arguments = ["dist_sync", "8", *filter(None, sys.path)]
    outputs = launch_kvstore(
        WORKER + LISTENING, servers=2, arguments=arguments, timeout=TIMEOUT
    )
    results = [json.loads(text.splitlines()[0]) for text in outputs]
    assert [rank for rank, *_ in results] == [0, 1]
    for text in outputs:
        addresses = {*json.loads(text.splitlines()[1])}
        assert addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    for _, _, weights, refused in results:
        for got, ours, alone in zip(weights, in_process(2), in_process(1), strict=True):
            assert (np.float32(got) == ours).all()  # bit for bit
            assert np.abs(got - alone).max() <= 1e-5 * np.abs(alone).max()
        for words, fact in zip(refused, ("worker", "float64", "local"), strict=True):
            assert fact in words


def test_dist_async_on_one_server_learns() -> None:
    outputs = launch_kvstore(WORKER, arguments=["dist_async", "4"], timeout=TIMEOUT)
    for text in outputs:
        _, losses, weights, _ = json.loads(text)
        assert all(np.isfinite(w).all() for w in weights)
        assert losses[-1] < losses[0]


def test_a_server_unpickles_nothing_that_is_sent_to_it(tmp_path: Path) -> None:
    poison = f"cposix\nsystem\n(Vtouch {tmp_path}/trace\ntR."  # run when unpickled
    program = WORKER + f"store._kv._send_command_to_servers(0, {poison!r})"
    with pytest.raises(ProcessFailed, match="from server 0(?s:.*)JSONDecodeError"):
        launch_kvstore(program, arguments=["dist_sync", "8"], timeout=TIMEOUT)
    assert not (tmp_path / "trace").exists()
