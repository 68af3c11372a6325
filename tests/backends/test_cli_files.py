"""The files that the command line writes: whole, or as they were before."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

from d2lmulti import cli, devices

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
