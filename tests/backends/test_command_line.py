"""`python -m d2lmulti`: what it prints and writes, its exit codes, its errors."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from d2lmulti import cli, devices, train
from d2lmulti.backends import framework_names
from d2lmulti.comm.devices import with_place
from d2lmulti.errors import InvalidInput, WriteFailed
from d2lmulti.training.checkpoint import load_checkpoint
from d2lmulti.training.strategies import STRATEGIES, option_help

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


# -- bad input: exit code 2, one line that names the option, no work -------------------

# Options, and words that the message has.
REFUSED: dict[str, str] = {
    "": "command",
    "nonsense": "nonsense",
    "train --nonsense": "--nonsense",
    "train --devices 0": "devices",
    "train --devices 999": "devices",
    "train --backend jax": "backend",
    "train --model vgg": "--model",
    "train --dtype float16": "--dtype",
    "train --dataset text --model mlp": "mlp",
    "train --epochs ten": "--epochs",
    "train --epochs 0": "epochs",
    "train --batch-size 0": "batch_size",
    "train --batch-size 1.5": "--batch-size",
    "train --lr nan": "lr",
    "train --lr 1e308": "finite",
    "train --warmup 0": "warmup",
    "train --momentum 1": "momentum",
    "train --optimizer adam --momentum 0.9": "momentum",
    "train --seed -1": "seed",
    "train --algorithm snail": "--algorithm",
    "train --bucket-mb 1e-9": "bucket_bytes",
    "train --bucket-mb nan": "--bucket-mb",
    "train --accumulate 0": "accumulate",
    "train --accumulate 99": "the 198 parts",
    "train --accumulate 2 --model lenet_sync_bn": "lenet_sync_bn",
    "train --strategy tensor --devices 3": "divide",
    "train --strategy pipeline --devices 3": "3 stages",
    "train --strategy pipeline --stages 0": "stages",
    "train --strategy pipeline --micro-batches 0": "micro_batches",
    "train --strategy pipeline --micro-batches 999": "999 parts",
    "train --strategy sharded --zero 4": "zero",
    "train --strategy sharded --precision bf16 --dtype float64": "float32",
    "train --strategy sharded --model lenet_bn": "lenet_bn",
    "train --strategy mesh": "mesh",
    "train --mesh data=2,depth=2": "depth",
    "train --mesh data=2,data=2": "--mesh",
    "train --mesh data=0": "data",
    "train --mesh data=2 --devices 3": "data=2",
    "train --mesh sequence=2 --model mlp": "sequence",
    "train --mesh data=2 --zero 2": "zero",
    "train --mesh pipeline=2 --schedule zb_v": "schedule",
    "train --save-every 3": "checkpoint",
    "train --resume": "checkpoint",
    "train --checkpoint .": "ordinary file",
    "train --checkpoint nowhere/x.npz": "nowhere",
    "train --json nowhere/x.json": "nowhere",
    "train --json a --timeline a": "--timeline",
    "bench devices --repeats 0": "--repeats",
    "simulate --ranks 65537": "--ranks",
    "simulate --bytes 5": "4 bytes",
    "simulate --collective broadcast --algorithm tree": "--algorithm",
    "plan --cluster dgx-1 --gpus 8": "--model",
    "validate .": "CSV",
}
# An option of one strategy with another.
OF_OTHERS = {
    "data": "schedule micro_batches stages zero precision mesh",
    "tensor": "bucket_bytes accumulate schedule micro_batches stages zero precision "
    "mesh",
    "pipeline": "algorithm bucket_bytes accumulate zero precision mesh",
    "sharded": "algorithm bucket_bytes schedule micro_batches stages mesh",
    "mesh": "bucket_bytes accumulate precision",
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_before_any_work(
    line, tmp_path, monkeypatch, capsys, record_property
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("D2LMULTI_BACKEND", "numpy")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = line.split()
    if words[:1] == ["train"] and "--model" not in words:
        words += ["--model", "mlp"]
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error: ") and REFUSED[line] in told.err
    assert told.err.count("\n") == 1
    assert told.out == "" and list(tmp_path.iterdir()) == []
    record_property("bad options", 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_option_of_another_strategy_is_refused(strategy, record_property):
    own = [option.name for option in fields(STRATEGIES[strategy])]
    assert {*own, *OF_OTHERS[strategy].split()} == set(option_help())
    for name in OF_OTHERS[strategy].split():
        with pytest.raises(InvalidInput, match=f"strategy {strategy}, got {name}"):
            train(2, backend="numpy", strategy=strategy, **{name: 1})
    record_property("bad options", len(OF_OTHERS[strategy].split()))


def test_the_options_of_the_command_are_those_of_train(capsys):
    assert cli.main(["train", "--help"]) == 0
    told = capsys.readouterr().out
    names = set(inspect.signature(train).parameters) - {"num_gpus", "bucket_bytes"}
    assert set(option_help()) < {*names, "bucket_bytes"}
    for name in names | {"bucket_mb", "json", "plot", "timeline"}:
        assert f"--{name.replace('_', '-')} " in told
    documented = re.findall(r":param (\w+): ", train.__doc__ or "")
    assert {*documented} == {*inspect.signature(train).parameters}


@pytest.mark.parametrize("package", ["benchmarks", "d2lmulti_cluster"])
def test_a_command_without_its_package_says_what_is_missing(
    package, monkeypatch, capsys
):
    monkeypatch.setattr(cli, "find_spec", lambda name: name != package or None)
    command = "bench" if package == "benchmarks" else "simulate"
    assert cli.main([command]) == 2
    assert package in capsys.readouterr().err
    assert cli.main(["--help"]) == 0
    told = capsys.readouterr().out
    assert "train" in told and f"  {command}" not in told


# -- streams and signals ---------------------------------------------------------------


def shell(command: str) -> subprocess.CompletedProcess:
    """Run it in a shell that gives the exit code of a pipe's first broken part."""
    program = f"{sys.executable} -m d2lmulti train --backend numpy --model mlp"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{program} --epochs 1 {command}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_closed_streams_change_no_result(tmp_path):
    files = f"--json {tmp_path / 'h.json'} --checkpoint {tmp_path / 'run.npz'}"
    done = shell(f"{files} <&- >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(json.loads((tmp_path / "h.json").read_text())["epochs"]) == 1
    assert load_checkpoint(tmp_path / "run.npz").epoch == 1


def test_a_closed_pipe_is_no_error():
    # The reader ends before a line is written, so that the pipe is broken for sure.
    done = shell("| (exec 0<&-; sleep 0)")
    assert (done.returncode, done.stderr) == (141, "")


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


def test_a_data_folder_that_is_a_file_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "data").write_text("")
    monkeypatch.setenv("D2LMULTI_DATA", str(tmp_path / "data"))
    train = ["train", "--backend", "numpy", "--dataset", "fashion_mnist"]
    assert cli.main(train) == 2
    assert str(tmp_path / "data") in capsys.readouterr().err


def test_a_missing_framework_is_refused_with_its_install_line():
    done = without_frameworks("train", "--backend", "paddle")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install paddlepaddle" in done.stderr
    assert "Traceback" not in done.stderr


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


# -- files -----------------------------------------------------------------------------

SHORT = ["train", "--backend", "numpy", "--model", "mlp", "--epochs", "1"]
SHORT += ["--batch-size", "512"]


def short(*options: str) -> int:
    return cli.main([*SHORT, *options])


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


def one_sentence(text: str, begin: str, end: str) -> bool:
    line = text.removesuffix("\n")
    return line.startswith(begin) and line.endswith(end) and "\n" not in line


BAD_FILES = {
    "one file for two": ("--json {a} --plot {a}", "different files, got --json"),
    "the checkpoint's file": ("--checkpoint {a} --timeline {a}", "different files"),
    "a read-only result": ("--json {locked}", "it is read-only"),
    "a read-only checkpoint": ("--checkpoint {locked} --resume", "it is read-only"),
    "a picture of another kind": ("--plot a.jpg", "a file that ends in .png"),
    "a name too long": ("--plot {long}", "name too long"),
    "a checkpoint over a text": ("--checkpoint {notes}", "--resume"),
    "a text as a checkpoint": ("--checkpoint {notes} --resume", "that cannot be read"),
}


@pytest.mark.parametrize("cause", BAD_FILES)
def test_files_are_refused_before_any_work(cause, tmp_path, monkeypatch, capsys):
    options, message = BAD_FILES[cause]
    names = {"a": "a", "locked": "locked", "long": "x" * 300, "notes": "notes"}
    for name in ("locked", "notes"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "locked").chmod(0o444)
    monkeypatch.chdir(tmp_path)
    assert short(*options.format(**names).split()) == 2
    told = capsys.readouterr()
    assert message in told.err and told.err.startswith("error: ") and told.out == ""
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        "locked": "mine", "notes": "mine",
    }  # fmt: skip


def test_results_replace_old_ones_and_keep_their_permissions(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text("old")
    path.chmod(0o600)
    assert short("--json", str(path)) == 0
    assert path.read_text().startswith("{") and path.stat().st_mode & 0o777 == 0o600


def test_a_disk_that_fills_up_in_the_middle_of_a_save_loses_nothing(tmp_path: Path):
    path = tmp_path / "run.npz"  # 1.6 MB
    for when in ("the first save", "a later save"):
        before = path.read_bytes() if path.exists() else None
        done = limited(10**6, "--epochs", "2", "--checkpoint", str(path), "--resume")
        assert (done.returncode, done.stdout) == (2, ""), when
        assert one_sentence(done.stderr, "error: cannot write ", "File too large")
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
    assert one_sentence(done.stderr, f"error: cannot write {curve}: File too", "large")
    assert os.listdir(tmp_path) == ["history.json"]  # which fits


def test_all_that_failed_is_named(tmp_path, monkeypatch, capsys):
    def full(path, _):
        raise WriteFailed(f"no room for {path}")

    command = import_module("d2lmulti.cli")
    monkeypatch.setattr(command, "write_json", full)
    curve = tmp_path / "curve.png"
    assert short("--json", "h", "--timeline", "t", "--plot", str(curve)) == 2
    told = capsys.readouterr()
    assert told.out.startswith("test accuracy") and curve.exists()
    assert told.err == "error: no room for t\nerror: no room for h\n"
