"""What the command line prints, where to, and what ends it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from benchmarks import allreduce
from d2lmulti import cli
from d2lmulti.training.checkpoint import load_checkpoint


def test_bench_prints_ratios(load, monkeypatch, capsys):
    load("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which bench sets, and this gives back
    small = partial(allreduce.bench_allreduce, ranks=2, megabytes=1)
    monkeypatch.setattr(allreduce, "bench_allreduce", small)
    assert cli.main(["bench", "allreduce", "--backend", "torch", "--repeats", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 7
    for row in rows:
        assert re.fullmatch(r"torch +.+ +[0-9.e-]+ +[0-9.]+  [0-9.]+ to [0-9.]+", row)


def shell(command: str) -> subprocess.CompletedProcess:
    """Run it in a shell that gives the exit code of a pipe's first broken part."""
    program = f"{sys.executable} -m d2lmulti train --backend numpy --model mlp"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{program} --epochs 1 {command}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_pipe_gets_one_line_and_a_closed_one_is_no_error():
    done = shell("")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    # The reader ends before a line is written, so that the pipe is broken for sure.
    done = shell("| (exec 0<&-; sleep 0)")
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_is_one_line_and_leaves_the_last_checkpoint(tmp_path):
    file = tmp_path / "run.npz"
    options = f"--model mlp --epochs 99999 --save-every 1 --checkpoint {file}"
    process = subprocess.Popen(
        [sys.executable, "-m", "d2lmulti", "train", "--backend", "numpy"]
        + options.split(),
        stderr=subprocess.PIPE,
        text=True,
        # A shell in the background may have told its programs to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not file.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, "interrupted\n")
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []
    load_checkpoint(file)
