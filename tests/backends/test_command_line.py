"""`python -m d2lmulti`: what it prints and writes, its exit codes, its refusals."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys

import pytest

from d2lmulti import cli, devices
from d2lmulti.backends import framework_names
from d2lmulti.comm.devices import with_place

QUICK = ["train", "--model", "mlp", "--epochs", "2", "--batch-size", "512"]


def python(*arguments: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k != "D2LMULTI_BACKEND"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )


def without_frameworks(*arguments: str) -> subprocess.CompletedProcess:
    """Run the command line in a Python where no framework can be imported."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({framework_names()}))\n"
        f"from d2lmulti.cli import main; sys.exit(main({list(arguments)}))"
    )
    return python("-c", code)


# -- doctor ----------------------------------------------------------------------------


def test_doctor_names_what_is_installed(load):
    load("torch")
    done = python("-m", "d2lmulti", "doctor")
    assert done.returncode == 0, done.stderr
    version = re.escape(sys.modules["torch"].__version__)
    devices = r"(sim:0, sim:1 \(simulated\)|gpu:0, gpu:1)"
    assert re.search(
        rf"^torch +{version} +GPUs: \d+; devices\(2\) gives {devices}$",
        done.stdout,
        re.MULTILINE,
    )
    assert f"Python {'.'.join(map(str, sys.version_info[:3]))}" in done.stdout
    for name in framework_names():
        assert re.search(
            rf"^{name} +(missing  .*pip install|[0-9.]+)", done.stdout, re.M
        )
    assert "default backend: torch (D2LMULTI_BACKEND is not set)" in done.stdout


def test_doctor_without_a_framework_names_numpy():
    done = without_frameworks("doctor")
    assert done.returncode == 1, done.stderr
    for name in framework_names():
        assert re.search(rf"^{name} +missing .*pip install .*{name}", done.stdout, re.M)
    assert re.search(r"^numpy +[0-9.]+ +GPUs: 0; devices\(2\) gives", done.stdout, re.M)
    assert done.stdout.endswith(
        "default backend: torch (D2LMULTI_BACKEND is not set)\nIt is missing: install "
        "it, or begin without a framework:\npython -m d2lmulti train --backend numpy\n"
    )


# -- train -----------------------------------------------------------------------------


def test_train_writes_the_history_and_the_curve(framework, tmp_path, capsys):
    history, curve = tmp_path / "history.json", tmp_path / "curve.png"
    status = cli.main(
        [*QUICK, "--backend", framework.name, "--devices", "3", "--seed", "4"]
        + ["--json", str(history), "--plot", str(curve)]
    )
    assert status == 0
    told = json.loads(history.read_text())
    assert len(told["epochs"]) == 2
    first, last = told["epochs"]
    assert 0 < last["loss"] < first["loss"]
    assert 0.1 < first["accuracy"] < last["accuracy"] <= 1
    assert len(told["devices"]) == 3
    numbers = 784 * 256 + 256 + 256 * 10 + 10
    step = 2 * (3 - 1) * numbers * 4  # bytes of the star; 1,437 images are 3 batches
    assert [epoch["bytes_moved"] for epoch in told["epochs"]] == [3 * step, 3 * step]
    assert told["bytes_moved"] == 6 * step
    settings = {"backend": framework.name, "model": "mlp", "dataset": "digits"}
    settings |= {"dtype": "float32", "batch_size": 512, "lr": 0.05, "momentum": 0.9}
    assert {**settings, "seed": 4, "algorithm": "star"}.items() <= told.items()

    png = curve.read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and len(png) > 10_000
    width, height = struct.unpack(">II", png[16:24])
    assert width > height > 300

    seconds = sum(epoch["seconds"] for epoch in told["epochs"]) / 2
    places = [with_place(device, framework.name) for device in told["devices"]]
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"test accuracy {last['accuracy']:.4f}, loss {last['loss']:.4f}, "
        f"{seconds:.2f} s an epoch, {6 * step / 1e6:.1f} MB moved, "
        f"{framework.name} on {', '.join(places)}"
    )


def test_train_shows_progress_on_a_terminal(framework, monkeypatch, capsys):
    monkeypatch.delenv("D2LMULTI_QUIET", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main([*QUICK, "--backend", framework.name]) == 0
    bar = capsys.readouterr().err
    assert "mlp on 2" in bar and "2.87k/2.87k" in bar  # 2 epochs of 1,437
    assert "images/s" in bar and "loss=" in bar


def test_train_is_silent_in_a_pipe(load):
    load("torch")
    done = python("-m", "d2lmulti", *QUICK, "--backend", "torch")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_the_default_backend_comes_from_the_environment(framework, monkeypatch, capsys):
    monkeypatch.setenv("D2LMULTI_BACKEND", framework.name)
    assert cli.main(QUICK) == 0
    assert f"{framework.name} on" in capsys.readouterr().out


# -- bench -----------------------------------------------------------------------------


def test_bench_devices_prints_ratios(load, monkeypatch, capsys):
    load("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which bench sets, and this gives back
    assert cli.main(["bench", "devices", "--backend", "torch", "--repeats", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"torch +1 device +[0-9.]+ +1\.000  1\.000 to 1\.000", lines[2])
    assert re.fullmatch(
        r"torch +2 devices +[0-9.]+ +[0-9.]+  [0-9.]+ to [0-9.]+", lines[3]
    )
    assert re.fullmatch(
        r"torch +4 devices +[0-9.]+ +[0-9.]+  [0-9.]+ to [0-9.]+", lines[4]
    )
    assert len(lines) == 5


def test_bench_of_nothing_ends_with_1():
    done = without_frameworks("bench", "devices")
    assert done.returncode == 1
    assert done.stdout.count("missing: ") == 3


# -- refusals: exit code 2, one sentence, no traceback ---------------------------------

REFUSED = {
    "no devices": (["--devices", "0"], "as devices, got 0"),
    "fewer devices than none": (["--devices", "-1"], "as devices, got -1"),
    "more devices than images": (["--devices", "999"], "fewer than 999 devices"),
    "an unknown backend": (["--backend", "jax"], "one of torch, mxnet, paddle"),
    "an unknown model": (["--model", "vgg"], "invalid choice: 'vgg'"),
    "an unknown data set": (["--dataset", "cifar"], "invalid choice: 'cifar'"),
    "an unknown dtype": (["--dtype", "float16"], "invalid choice: 'float16'"),
    "an unknown algorithm": (["--algorithm", "snail"], "invalid choice: 'snail'"),
    "a number that is a word": (["--epochs", "ten"], "a whole number, got 'ten'"),
    "no epochs": (["--epochs", "0"], "as epochs, got 0"),
    "no examples in a batch": (["--batch-size", "0"], "at least 1"),
    "a learning rate of nothing": (["--lr", "nan"], "above 0 as lr, got nan"),
    "a momentum of 1": (["--momentum", "1"], "below 1 as momentum, got 1.0"),
    "a seed below zero": (["--seed", "-1"], "at least 0 as seed, got -1"),
    "a history nowhere": (
        ["--json", "nowhere/x.json"],
        "nowhere is not a folder; make the folder first",
    ),
    "a picture nowhere": (["--plot", "nowhere/x.png"], "nowhere is not a folder; make"),
    "a history over a folder": (["--json", "."], "an ordinary file, got a folder"),
}


@pytest.mark.parametrize("cause", REFUSED)
def test_bad_options_are_refused_before_any_work(cause, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options, message = REFUSED[cause]
    backend = [] if "--backend" in options else ["--backend", "numpy"]
    try:
        status = cli.main(["train", *backend, *options])
    except SystemExit as stop:  # argparse's way
        status = stop.code
    told = capsys.readouterr()
    assert status == 2
    assert message in told.err and "error: " in told.err.splitlines()[-1]
    assert told.out == "" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--repeats", "--threads"])
def test_bench_refuses_zero(option, capsys):
    assert cli.main(["bench", "devices", option, "0"]) == 2
    assert f"as {option[2:]}, got 0\n" in capsys.readouterr().err


def test_a_data_folder_that_is_a_file_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "data").write_text("")
    monkeypatch.setenv("D2LMULTI_DATA", str(tmp_path / "data"))
    train = ["train", "--backend", "numpy", "--dataset", "fashion_mnist"]
    assert cli.main(train) == 2
    assert "expected a folder in D2LMULTI_DATA" in capsys.readouterr().err


def test_a_missing_framework_is_refused_with_its_install_line():
    done = without_frameworks("train", "--backend", "paddle")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install paddlepaddle" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_refusal_from_the_shell_has_no_traceback():
    done = python("-m", "d2lmulti", "train", "--devices", "0", "--backend", "numpy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: expected a whole number from 1 to 65536 as devices, got 0; use "
        "devices(1)\n"
    )


def test_a_command_is_needed():
    done = python("-m", "d2lmulti")
    assert done.returncode == 2
    assert "COMMAND" in done.stderr and "Traceback" not in done.stderr


def test_a_timeline_names_what_each_device_did(load, tmp_path):
    load("torch")
    file = tmp_path / "trace.json"
    options = ["--model", "mlp", "--backend", "torch", "--epochs", "1", "--batch-size"]
    assert cli.main(["train", *options, "512", "--timeline", str(file)]) == 0
    events = json.loads(file.read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    did: dict[str, list[str]] = {}
    for event in events:
        if event["ph"] == "X":
            did.setdefault(tracks[event["tid"]], []).append(event["name"])
    step = ["load", "forward", "backward", "all-reduce", "update"]
    assert [tracks[tid] for tid in sorted(tracks)] == [
        str(device) for device in devices(2, "torch")
    ]
    assert all(names == 3 * step for names in did.values())


@pytest.mark.parametrize(
    ("model", "split"),
    [
        ("mlp", "--strategy tensor"),
        ("mlp", "--strategy pipeline --schedule gpipe --micro-batches 8"),
        ("deep_mlp", "--strategy pipeline --schedule interleaved --stages 4"),
        ("deep_mlp", "--strategy pipeline --schedule zb_v"),
    ],
)
def test_the_work_can_be_split_in_three_ways(load, tmp_path, model, split):
    load("torch")
    file = tmp_path / "history.json"
    common = ["--model", model, "--backend", "torch", "--dtype", "float64", "--json"]
    losses = []
    for options in (["--devices", "1"], ["--devices", "2", *split.split()]):
        assert cli.main([*QUICK, *common, str(file), *options]) == 0
        losses.append([e["loss"] for e in json.loads(file.read_text())["epochs"]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
