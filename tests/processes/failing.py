"""Ranks to which something happens in the middle of a run, for `test_failing`."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import d2lmulti
from d2lmulti.processes.launcher import launch, launch_kvstore
from d2lmulti.processes.process_group import started
from d2lmulti.processes.spawn import ProcessFailed
from d2lmulti.training.checkpoint import load_checkpoint

LIMIT = 15.0  # seconds from the fault until it is named and all have ended
ENGINES = {
    "shared_memory": "numpy",
    "torch": "torch",
    "paddle": "paddle",
    "horovod": "torch",
    "kvstore": "mxnet",
}
# Fault -> what the error says of the victim, rank (or worker) 1.
FAULTS = {
    "killed": "got SIGKILL (it was killed) from {} 1;",
    "exit 0": "got exit code 0 before its work was done from {} 1;",
    "exception": "exit code 1 from {} 1;",
}


class Outcome(NamedTuple):
    """What became of one fault: what is wrong with its end, and how long it took."""

    wrong: str
    seconds: float


def happen(fault: str, mark: str) -> None:
    """Let it happen to this process, and note when, and in which launch."""
    Path(mark).write_text(f"{time.monotonic()} {os.environ['D2LMULTI_FOLDER']}")
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "exit 0":
        os._exit(0)
    elif fault == "exception":
        raise ZeroDivisionError("of rank 1")
    elif fault == "full disk":  # the same to the kernel: no byte more in a file
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))


def run_into(fault: str, mark: str) -> None:
    """Sum with the others for ever; something happens to rank 1 in the third round."""
    group, B = started(), d2lmulti.get_backend()
    assert group is not None
    x = B.array(np.ones(100_000, "float32"))
    for step in range(10_000_000):
        if step == 3 and group.local_ranks == (1,):
            happen(fault, mark)
        d2lmulti.allreduce([x], "native")
        B.write_(x, 0, 100_000, B.array(np.ones(100_000, "float32")))


def save_into(path: str, mark: str) -> None:
    """Train and save after every step; the disk is full for rank 0 from step 3 on."""
    group = started()
    assert group is not None

    def full() -> None:
        happen("full disk", mark)

    digits = d2lmulti.load("digits").first(64)
    options = {"dataset": digits, "model": "mlp", "epochs": 1, "batch_size": 16}
    d2lmulti.train(2, checkpoint=path, **options)
    if group.leader:
        full()
    options["epochs"] = 50
    d2lmulti.train(2, checkpoint=path, save_every=1, resume=True, **options)


KVSTORE = """
import sys, time
import numpy as np
import d2lmulti
from d2lmulti.processes.mxnet_kvstore import KVStore
sys.path.insert(0, sys.argv[3])
from failing import happen

B = d2lmulti.get_backend("mxnet")
store = KVStore([B.array(np.zeros(100_000, "float32"))], 0.5)
me = int(__import__("os").environ["D2LMULTI_WORKER_FILE"][-1])
for step in range(10_000_000):
    if step == 3 and me == 1:
        happen(sys.argv[1], sys.argv[2])
    store.push(store.worker, [B.array(np.ones(100_000, "float32"))])
    store.pull(store.worker)
"""


def fail(engine: str, fault: str, folder: Path) -> Outcome:
    """Launch two ranks, let it happen, and judge how it ends."""
    mark = folder / "mark"
    words = FAULTS.get(fault, "exit code 1 from {} 0;")
    words = words.format("worker" if engine == "kvstore" else "rank")
    wrong = "it did not end with an error"
    try:
        if engine == "kvstore":
            here = str(Path(__file__).parent)
            launch_kvstore(KVSTORE, arguments=[fault, str(mark), here], timeout=100)
        else:
            do, *what = (
                (save_into, str(folder / "run.npz"), str(mark))
                if fault == "full disk"
                else (run_into, fault, str(mark))
            )
            backend = ENGINES[engine]
            launch(do, 2, *what, engine=engine, backend=backend, timeout=100)
    except ProcessFailed as error:
        wrong = "" if words in str(error) else f"it said {error}"
    when, launched = mark.read_text().split()
    seconds = time.monotonic() - float(when)
    if fault == "full disk" and not wrong:
        last = load_checkpoint(folder / "run.npz")
        wrong = "" if (last.epoch, last.step) == (1, 0) else "the checkpoint is lost"
    return judged(wrong, seconds, launched)


def judged(wrong: str, seconds: float, launched: str) -> Outcome:
    if not wrong and seconds > LIMIT:
        wrong = f"it took {seconds:.1f} s"
    if not wrong and (left := leftovers(launched)):
        wrong = f"it left {', '.join(left)}"
    return Outcome(wrong, seconds)


def leftovers(launched: str) -> list[str]:
    """List what a launch has left: its folder, and what else bears its random name."""
    word = Path(launched).name.rpartition("-")[2]
    folders = filter(os.path.isdir, ("/dev/shm", tempfile.gettempdir()))
    return [f"{folder}/{name}" for folder in folders for name in os.listdir(folder)
            if word in name]  # fmt: skip


def cases(engine: str) -> dict[str, Callable[[Path], Outcome]]:
    """Return all faults that can happen on an engine."""
    return {
        fault: lambda folder, fault=fault: fail(engine, fault, folder)
        for fault in (*FAULTS, *(() if engine == "kvstore" else ("full disk",)))
    }
