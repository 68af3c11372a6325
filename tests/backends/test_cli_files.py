"""What the command line writes, whole or as it was before; and what it prints."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from benchmarks import allreduce
from d2lmulti import cli, devices
from d2lmulti.training.checkpoint import load_checkpoint

SHORT = ["train", "--backend", "numpy", "--model", "mlp", "--epochs", "1"]
SHORT += ["--batch-size", "512"]


def short(*options: str) -> int:
    return cli.main([*SHORT, *options])


def test_train_writes_the_history_the_curve_and_the_timeline(
    framework, tmp_path, capsys
):
    history, curve, trace = (tmp_path / name for name in ("h.json", "c.png", "t.json"))
    status = short(
        *("--backend", framework.name, "--devices", "3", "--epochs", "2"),
        *("--seed", "4"),
        *("--json", str(history), "--plot", str(curve), "--timeline", str(trace)),
    )
    assert status == 0
    told = json.loads(history.read_text())
    first, last = told["epochs"]
    assert 0 < last["loss"] < first["loss"]
    assert 0.1 < first["accuracy"] < last["accuracy"] <= 1
    numbers = 784 * 256 + 256 + 256 * 10 + 10
    step = 2 * (3 - 1) * numbers * 4  # bytes of the star; 1,437 images are 3 batches
    assert [epoch["bytes_moved"] for epoch in told["epochs"]] == [3 * step, 3 * step]
    settings = {"backend": framework.name, "model": "mlp", "dataset": "digits"}
    settings |= {"dtype": "float32", "batch_size": 512, "lr": 0.05, "momentum": 0.9}
    assert {**settings, "seed": 4, "algorithm": "star"}.items() <= told.items()
    line = capsys.readouterr().out.splitlines()[-1]
    for fact in (f"{last['accuracy']:.4f}", f"{last['loss']:.4f}", framework.name):
        assert fact in line
    assert f"{6 * step / 1e6:.1f} MB moved" in line

    png = curve.read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and len(png) > 10_000
    width, height = struct.unpack(">II", png[16:24])
    assert width > height > 300

    events = json.loads(trace.read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [tracks[tid] for tid in sorted(tracks)] == [
        str(device) for device in devices(3, framework.name)
    ]
    names = ["load", "forward", "backward", "all-reduce", "update"]
    for tid in tracks:
        did = [e["name"] for e in events if e["ph"] == "X" and e["tid"] == tid]
        assert did == 6 * names


def limited(size: int, *options: str) -> subprocess.CompletedProcess:
    """Train in a Python that cannot write larger files, as if the disk were full."""
    code = (
        "import resource, sys; from d2lmulti.cli import main\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
        f"sys.exit(main({[*SHORT, *options]}))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )


def test_a_disk_that_fills_up_in_the_middle_of_a_save_loses_nothing(tmp_path: Path):
    path = tmp_path / "run.npz"  # 1.6 MB
    for when in ("the first save", "a later save"):
        before = path.read_bytes() if path.exists() else None
        done = limited(10**6, "--epochs", "2", "--checkpoint", str(path), "--resume")
        assert (done.returncode, done.stdout) == (2, ""), when
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
        assert os.listdir(tmp_path) == ([path.name] if before else [])
        if before is None:
            assert short("--checkpoint", str(path)) == 0
        else:
            assert path.read_bytes() == before
    assert short("--epochs", "2", "--checkpoint", str(path), "--resume") == 0


def test_a_result_that_cannot_be_written_is_printed_all_the_same(tmp_path: Path):
    curve = tmp_path / "curve.png"  # 60 kB
    files = ["--json", str(tmp_path / "history.json"), "--plot", str(curve)]
    done = limited(10_000, *files)
    assert done.returncode == 2 and done.stdout.startswith("test accuracy 0.")
    assert str(curve) in done.stderr and done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["history.json"]  # which fits


# -- what is printed, where to, and what ends it --------------------------------------


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


def test_a_pipe_gets_one_line_and_a_closed_one_is_no_error():
    program = f"{sys.executable} -m d2lmulti {' '.join(SHORT)}"
    # The reader ends before a line is written, so that the pipe is broken for sure.
    for pipe, status, lines in (("", 0, 1), ("| (exec 0<&-; sleep 0)", 141, 0)):
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{program} {pipe}"],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (status, "")
        assert done.stdout.count("\n") == lines


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
