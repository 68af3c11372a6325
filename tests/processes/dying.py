"""A training run whose workers are killed at random moments, for `test_faults`.

Apart from the tests, because every new process reads this file and should be quick.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from typing import Any

import numpy as np
from backends.compare import digest

import d2lmulti
from d2lmulti.models.networks import make_mlp
from d2lmulti.processes.process_group import start, started, stop

SETTINGS: dict[str, Any] = {
    "batch_size": 16,
    "epochs": 30,  # more than all the attempts get done before they are killed
    "model": make_mlp("small", (784, 16, 10)),
    "dtype": "float32",  # the same bits, not only the same numbers
    "lr": 0.05,
}


def dying_run(data: Any, path: str, kills: int) -> list[str]:
    """Train on two ranks; in each of the first attempts one of them is killed."""
    words = ("D2LMULTI_RESTART", "TORCHELASTIC_RESTART_COUNT")
    attempt = int(next(os.environ[word] for word in words if word in os.environ))
    rng = np.random.default_rng(attempt)
    victim, step, delay = rng.integers(2), rng.integers(1, 9), rng.uniform(0, 0.02)
    model, calls = SETTINGS["model"], 0

    def forward(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        rank = started().local_ranks[0]  # held outside, the models would differ
        if calls == step and rank == victim and attempt < kills:
            kill = (os.getpid(), signal.SIGKILL)
            threading.Timer(delay, os.kill, kill).start()
        return model.forward(*args)

    history = d2lmulti.train(
        2,
        dataset=data,
        checkpoint=path,
        save_every=3,
        resume=True,
        **{**SETTINGS, "model": model._replace(forward=forward)},
    )
    B = d2lmulti.get_backend()
    return [digest(B.numpy(p)) for p in history.device_params[0]]


if __name__ == "__main__":  # under torchrun
    start()
    with open(sys.argv[1], "rb") as file:
        dying_run(pickle.load(file), sys.argv[2], kills=1)
    stop()
