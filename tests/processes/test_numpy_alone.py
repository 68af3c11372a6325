"""`pip install .` and nothing else: NumPy trains, however split, and in processes.

Every Python of these tests, the workers that it starts included, finds only what the
package itself requires: a `sitecustomize` at the head of the path hides the rest.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.numpy

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ["torch", "mxnet", "paddle", "tensorflow", "horovod"]

HIDE = """\
import sys
HIDDEN = frozenset({hidden!r})
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""

PROGRAM = f"""\
import json, sys
from dataclasses import replace
import d2lmulti
from d2lmulti import cli
from d2lmulti.models import MODELS
from d2lmulti.processes.launcher import launch

def loss(model, devices, **how):
    data = d2lmulti.load("text" if "transformer" in model else "digits",
                         dtype="float64").first(16)
    data = replace(data, test_X=data.test_X[:8], test_y=data.test_y[:8])
    return d2lmulti.train(devices, 8, 0.01, epochs=1, dtype="float64", model=model,
                          dataset=data, backend="numpy", **how).losses[-1]

def in_processes():
    return loss("mlp", 2)

if __name__ == "__main__":
    found = {{model: [loss(model, 1), loss(model, 2)] for model in MODELS}}
    for model in ("lenet", "mlp", "alexnet", "transformer"):
        found[model] += [loss(model, 2, strategy=way)
                         for way in ("tensor", "pipeline", "sharded")]
        found[model].append(loss(model, 2, mesh={{"data": 2}}, strategy="mesh"))
    run = launch(in_processes, 2, backend="numpy", timeout=60)
    found["mlp"] += run.values
    train = "train --backend numpy --model mlp --batch-size 512 --epochs 1"
    files = ["--checkpoint", "run.npz", "--plot", "curve.png"]
    assert cli.main([*train.split(), *files]) == 0
    print(json.dumps([found, [m for m in {FRAMEWORKS} if m in sys.modules]]))
"""


def required() -> set[str]:
    """Return the distributions that `pip install .` brings, without the extras."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    (line,) = re.findall(r"^dependencies = (\[.*\])$", text, re.MULTILINE)
    todo, found = json.loads(line), set()
    while todo:
        requirement = todo.pop()
        name = plain(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
        if "extra ==" in requirement or name in found:
            continue
        try:
            todo += metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another Python or system
        found.add(name)
    return found


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def write_programs(folder: Path) -> None:
    """Write the program, and what hides all but the package's own requirements."""
    kept = required()
    assert {"numpy", "scikit-learn", "scipy"} <= kept
    hidden = FRAMEWORKS + [
        module
        for module, owners in metadata.packages_distributions().items()
        if not kept & {*map(plain, owners)}
        and module not in ("d2lmulti", "sitecustomize")
        and not module.startswith(("_virtualenv", "distutils"))
    ]
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    (folder / "program.py").write_text(PROGRAM)


def test_every_model_and_strategy_trains_also_in_processes(tmp_path: Path) -> None:
    """And the command line saves and draws."""
    write_programs(tmp_path)
    dropped = ("D2LMULTI_BACKEND", "PYTHONSAFEPATH")
    environment = {k: v for k, v in os.environ.items() if k not in dropped}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "program.py"],
        env=environment, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded == [] and len(found) >= 7
    found.pop("lenet_bn")  # differs by design: the statistics of each device's part
    for model, (first, *others) in found.items():
        assert others == pytest.approx([first] * len(others)), model
    assert (tmp_path / "run.npz").exists()
    assert (tmp_path / "curve.png").stat().st_size > 10_000
