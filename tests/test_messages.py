"""The words of the errors, in one golden file: tests/messages.txt.

Other tests look at the type of an error and at the facts that matter. After a change of
words: `pytest tests/test_messages.py --rewrite-messages`, and read the difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from backends.test_silent_errors import BY_THE_FRAMEWORK, CASES

import d2lmulti
from d2lmulti import cli
from d2lmulti.comm.group import local_group
from d2lmulti.comm.mesh import Mesh, split_group
from d2lmulti.errors import D2LMultiError
from d2lmulti.models.experts import expert_capacity
from d2lmulti.models.transformer import make_transformer
from d2lmulti.parallel.buckets import reduce_in_buckets
from d2lmulti.parallel.sequence import token_positions
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.pipeline import Forward, stage_ranks
from d2lmulti.plans.schedules import SCHEDULES
from d2lmulti.processes.launcher import launch
from d2lmulti.processes.process_group import start
from d2lmulti.training.checkpoint import load_checkpoint

NUMPY = d2lmulti.get_backend("numpy")
GOLDEN = Path(__file__).with_name("messages.txt")

# Bad command lines: exit code 2, one line, no work. `locked` is read-only, `notes` a
# text, `{long}` a name that is too long.
LINES = """
train --devices 0
train --devices 999
train --backend jax
train --dataset text --model mlp
train --epochs 0
train --batch-size 0
train --lr nan
train --lr 1e308
train --warmup 0
train --momentum 1
train --optimizer adam --momentum 0.9
train --seed -1
train --bucket-mb 1e-9
train --accumulate 0
train --accumulate 99
train --accumulate 2 --model lenet_sync_bn
train --strategy tensor --devices 3
train --strategy pipeline --devices 3
train --strategy pipeline --stages 0
train --strategy pipeline --micro-batches 0
train --strategy pipeline --micro-batches 999
train --strategy sharded --zero 4
train --strategy sharded --precision bf16 --dtype float64
train --strategy sharded --model lenet_bn
train --strategy mesh
train --mesh data=2,depth=2
train --mesh data=0
train --mesh data=2 --devices 3
train --mesh sequence=2 --model mlp
train --mesh data=2 --zero 2
train --mesh pipeline=2 --schedule zb_v
train --save-every 3
train --resume
train --checkpoint .
train --checkpoint nowhere/x.npz
train --checkpoint locked --resume
train --checkpoint notes
train --checkpoint notes --resume
train --checkpoint a --timeline a
train --json nowhere/x.json
train --json a --timeline a
train --json locked
train --plot a.jpg
train --plot {long}
simulate --bytes 5
validate .
""".strip().splitlines()

# Other calls -> what they are asked for wrongly.
CALLS: dict[str, Callable[[], object]] = {
    "launch(n=0)": lambda: launch(print, 0),
    "launch(engine='x')": lambda: launch(print, 2, engine="x"),
    "start() outside a launch": start,
    "Mesh of too many devices": lambda: Mesh(local_group(2), data=3),
    "parts that are not the same": lambda: split_group([[0], [0]], local_group(2)),
    "a data set that nobody knows": lambda: d2lmulti.load("cifar"),
    "a checkpoint that is not there": lambda: load_checkpoint("nowhere.npz"),
    "stages that lie twice": lambda: stage_ranks([[Forward(0, 0)], [Forward(0, 0)]], 1),
    "a schedule without chunks": lambda: SCHEDULES["zb_v"](2, 4, 1),
    "a schedule of no micro-batches": lambda: SCHEDULES["1f1b"](2, 0, 1),
    "a ring of no ranks": lambda: [*ALLREDUCE["ring"](0, 4)],
    "no devices": lambda: d2lmulti.devices(0, "numpy"),
    "a device that nobody knows": lambda: NUMPY.array([1.0], "tpu:0"),
    "a model that nobody knows": lambda: d2lmulti.get_model("vgg"),
    "a model that cannot be split": lambda: d2lmulti.get_split("lenet_bn"),
    "an average of everything": lambda: d2lmulti.Adam(beta1=1.0),
    "a link without bandwidth": lambda: d2lmulti.Link(0.0, 0.0),
    "a deployment of no clones": lambda: d2lmulti.DeploymentConfig(num_clones=0),
    "no parameters": lambda: d2lmulti.get_params([], "cpu"),
    "heads that do not divide the width": lambda: make_transformer("t", 9, 5, 48, 7),
    "fewer tokens than ranks": lambda: token_positions(3, 4, "contiguous"),
    "an order that nobody knows": lambda: token_positions(8, 4, "random"),
    "experts with no room": lambda: expert_capacity(8, 4, 0.0),
    "buckets without parameters": lambda: reduce_in_buckets([[]]).__enter__(),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two files that must be left alone."""
    for name in ("locked", "notes"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "locked").chmod(0o444)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("D2LMULTI_BACKEND", "numpy")
    return tmp_path


def said_to(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a bad command line; return its one line of explanation."""
    words = line.format(long="x" * 300).split()
    if words[:1] == ["train"] and "--model" not in words:
        words += ["--model", "mlp"]
    assert cli.main(words) == 2, line
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1, line
    return error.strip().replace("x" * 300, "{long}").replace(f"{Path.cwd()}", "HERE")


def said_by(call: Callable[[], object]) -> str:
    with pytest.raises(D2LMultiError) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.numpy
@pytest.mark.skipif(sys.platform == "win32", reason="other words for a file's faults")
def test_every_message_is_the_golden_one(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> None:
    found = {f"$ {line}": said_to(line, capsys) for line in LINES}
    assert {p.name: p.read_text() for p in folder.iterdir()} == {
        "locked": "mine", "notes": "mine",
    }  # fmt: skip
    record_property("bad options", len(LINES))
    calls = dict(CALLS)
    for name, (act, *facts) in CASES.items():
        if facts and not name.startswith(BY_THE_FRAMEWORK):
            calls[name] = partial(act, NUMPY)
    found |= {name: said_by(call) for name, call in calls.items()}
    text = "".join(f"{name}\n    {message}\n" for name, message in found.items())
    if request.config.getoption("--rewrite-messages"):
        GOLDEN.write_text(text, "utf-8")
    assert text == GOLDEN.read_text("utf-8")
