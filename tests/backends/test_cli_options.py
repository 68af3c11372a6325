"""The command line's options are those of `train`; what is missing is named."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from d2lmulti import cli, train
from d2lmulti.backends import framework_names
from d2lmulti.errors import InvalidInput
from d2lmulti.training.strategies import STRATEGIES, option_help


def without_frameworks(*arguments: str) -> subprocess.CompletedProcess:
    """Run the command line in a Python where no framework can be imported."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({framework_names()}))\n"
        f"from d2lmulti.cli import main; sys.exit(main({list(arguments)}))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_options_of_the_command_are_those_of_train(capsys):
    assert cli.main(["train", "--help"]) == 0
    told = capsys.readouterr().out
    names = set(inspect.signature(train).parameters) - {"num_gpus", "bucket_bytes"}
    assert set(option_help()) < {*names, "bucket_bytes"}
    for name in names | {"bucket_mb", "json", "plot", "timeline"}:
        assert f"--{name.replace('_', '-')} " in told
    documented = re.findall(r":param (\w+): ", train.__doc__ or "")
    assert {*documented} == {*inspect.signature(train).parameters}


# An option of one strategy with another.
OF_OTHERS = {
    "data": "schedule micro_batches stages zero precision mesh",
    "tensor": "bucket_bytes accumulate schedule micro_batches stages zero precision "
    "mesh",
    "pipeline": "algorithm bucket_bytes accumulate zero precision mesh",
    "sharded": "algorithm bucket_bytes schedule micro_batches stages mesh",
    "mesh": "bucket_bytes accumulate precision",
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_option_of_another_strategy_is_refused(strategy, record_property):
    own = [option.name for option in fields(STRATEGIES[strategy])]
    assert {*own, *OF_OTHERS[strategy].split()} == set(option_help())
    for name in OF_OTHERS[strategy].split():
        with pytest.raises(InvalidInput, match=name):
            train(2, backend="numpy", strategy=strategy, **{name: 1})
    record_property("bad options", len(OF_OTHERS[strategy].split()))


@pytest.mark.parametrize(
    "split",
    [
        "--strategy tensor --algorithm ring",
        "--strategy pipeline --schedule gpipe --micro-batches 8",
        "--strategy sharded --zero 3 --accumulate 2",
        "--mesh data=2,tensor=2 --devices 4",
    ],
)
def test_options_arrive_and_are_in_the_history(tmp_path: Path, split: str) -> None:
    file, words = tmp_path / "history.json", f"--devices 2 {split}".split()
    common = ["--model", "mlp", "--backend", "numpy", "--epochs", "1"]
    common += ["--batch-size", "512"]
    assert cli.main(["train", *common, "--json", str(file), *words]) == 0
    told = json.loads(file.read_text())
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert len(told["devices"]) == int(options.pop("--devices", 2))
    for name, value in options.items():
        found = told[name[2:].replace("-", "_")]
        if name == "--mesh":
            found = ",".join(f"{axis}={size}" for axis, size in found.items())
        assert str(found) == value
    if "pipeline" in split:  # by default a stage on each device; no other options
        assert told["stages"] == 2 and "algorithm" not in told


# -- what is missing -------------------------------------------------------------------


def test_a_missing_framework_is_named_with_its_install_line():
    done = without_frameworks("train", "--backend", "paddle")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install paddlepaddle" in done.stderr
    assert "Traceback" not in done.stderr
    done = without_frameworks("bench", "allreduce")
    assert done.returncode == 1 and done.stdout.count("missing: ") == 3
    done = without_frameworks("doctor")
    assert done.returncode == 1, done.stderr
    for name in framework_names():
        assert re.search(rf"^{name} +missing .*pip install .*{name}", done.stdout, re.M)
    assert "d2lmulti train --backend numpy" in done.stdout


def test_doctor_names_what_is_installed(load, capsys, monkeypatch):
    monkeypatch.delenv("D2LMULTI_BACKEND", raising=False)
    load("torch")
    assert cli.main(["doctor"]) == 0
    told, version = capsys.readouterr().out, sys.modules["torch"].__version__
    devices = r"(sim:0, sim:1 \(simulated\)|gpu:0, gpu:1)"
    row = rf"^torch +{re.escape(version)} +GPUs: \d+; devices\(2\) gives {devices}$"
    assert re.search(row, told, re.MULTILINE)
    assert "default backend: torch" in told
