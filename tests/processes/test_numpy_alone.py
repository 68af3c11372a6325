"""`pip install .` and nothing else: NumPy trains, in every way and in processes.

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

import d2lmulti

pytestmark = [pytest.mark.numpy, pytest.mark.xdist_group("numpy_alone")]

ROOT = Path(__file__).resolve().parents[2]

HIDE = """\
import sys
HIDDEN = frozenset({hidden!r})
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""

IN_ALL_WAYS = """\
import json, sys
from dataclasses import replace
import numpy as np
import d2lmulti
from d2lmulti.models import MODELS
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.schedules import SCHEDULES

B = d2lmulti.get_backend("numpy")
def first(name, n):
    data = d2lmulti.load(name, dtype="float64").first(n)
    return replace(data, test_X=data.test_X[:n], test_y=data.test_y[:n])

some = {"digits": first("digits", 16), "text": first("text", 8)}
def loss(model, devices, **how):
    data = some["text" if "transformer" in model else "digits"]
    return d2lmulti.train(devices, len(data.train_X) // 2, 0.01, epochs=1,
                          dtype="float64", model=model, dataset=data,
                          backend="numpy", **how).losses[-1]

told = {}
for model in MODELS:
    told[model] = {"one": loss(model, 1), "data": loss(model, 2)}
for model in ("lenet", "mlp", "alexnet", "transformer"):
    told[model]["tensor"] = loss(model, 2, strategy="tensor")
    told[model]["pipeline"] = loss(model, 2, strategy="pipeline")
for schedule in SCHEDULES:
    told["deep_mlp"][schedule] = loss(
        "deep_mlp", 2, strategy="pipeline", schedule=schedule, micro_batches=4,
        stages=4 if schedule == "interleaved" else None)
for algorithm in ALLREDUCE:
    data = [B.array(np.full(5, 2.0**i)) for i in range(4)]
    d2lmulti.allreduce(data, algorithm)
    told[algorithm] = [B.numpy(x).tolist() for x in data]
frameworks = ["torch", "mxnet", "paddle", "tensorflow", "horovod"]
told["loaded"] = [name for name in frameworks if name in sys.modules]
print(json.dumps(told))
"""

IN_PROCESSES = """\
import json
import numpy as np
import d2lmulti
from d2lmulti.processes.launcher import launch

def work():
    B = d2lmulti.get_backend()
    x = [B.array(np.ones(3))]
    d2lmulti.allreduce(x, "ring")
    history = d2lmulti.train(2, 24, 0.05, epochs=1, dtype="float64", model="mlp",
                             dataset=d2lmulti.load("digits", dtype="float64").first(48))
    return B.name, B.numpy(x[0]).tolist(), history.losses[-1]

if __name__ == "__main__":
    print(json.dumps(launch(work, 2, backend="numpy", timeout=60).values))
"""


def required() -> list[str]:
    """What pyproject.toml says that the package needs, without the extras."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    (line,) = re.findall(r"^dependencies = (\[.*\])$", text, re.MULTILINE)
    return json.loads(line)


def installed_with(requirements: list[str]) -> set[str]:
    """Names of the distributions that come with requirements such as `numpy>=1.23`."""
    found: set[str] = set()
    todo = [*requirements]
    while todo:
        requirement = todo.pop()
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        name = re.sub(r"[-_.]+", "-", name).lower()
        if "extra ==" in requirement or name in found:
            continue
        try:
            todo += metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another Python or system
        found.add(name)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory):
    """`alone(*arguments)` runs a Python that has the package's requirements alone."""
    kept = installed_with(required())
    assert {"numpy", "scikit-learn", "scipy"} <= kept
    hidden = [
        module
        for module, owners in metadata.packages_distributions().items()
        if not kept & {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners}
        and module not in ("d2lmulti", "sitecustomize")
        and not module.startswith(("_virtualenv", "distutils"))
    ]
    hidden += ["torch", "mxnet", "paddle", "tensorflow", "horovod"]
    folder = tmp_path_factory.mktemp("alone")
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    (folder / "all_ways.py").write_text(IN_ALL_WAYS)
    (folder / "processes.py").write_text(IN_PROCESSES)
    dropped = ("D2LMULTI_BACKEND", "PYTHONSAFEPATH")
    environment = {k: v for k, v in os.environ.items() if k not in dropped}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment, cwd=folder, capture_output=True, text=True,
        )  # fmt: skip

    return run


def test_every_strategy_model_schedule_and_all_reduce(alone) -> None:
    done = alone("all_ways.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.pop("loaded") == []
    for name in d2lmulti.plans.allreduce.ALLREDUCE:
        assert told.pop(name) == [[15.0] * 5] * 4
    assert told.pop("lenet_bn")["one"] > 0  # differs by design: a batch for each device
    assert len(told) == 7
    for model, losses in told.items():
        assert losses == pytest.approx(dict.fromkeys(losses, losses["one"])), model


def test_train_saves_resumes_and_draws(alone, tmp_path: Path) -> None:
    common = ["-m", "d2lmulti", "train", "--backend", "numpy", "--model", "mlp"]
    common += ["--batch-size", "512", "--checkpoint", str(tmp_path / "run.npz")]
    assert alone(*common, "--epochs", "1").returncode == 0
    picture = tmp_path / "curve.png"
    done = alone(*common, "--epochs", "2", "--resume", "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"test accuracy 0\.\d+, .* numpy on sim.*\n", done.stdout)
    assert picture.stat().st_size > 10_000


def test_processes_on_shared_memory(alone) -> None:
    done = alone("processes.py")
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)
    assert one == two
    assert one[:2] == ["numpy", [2.0] * 3]


def test_the_default_backend_names_what_to_install(alone) -> None:
    done = alone("-m", "d2lmulti", "train")
    assert done.returncode == 2
    assert "`pip install torch`" in done.stderr
    assert done.stderr.endswith("`numpy` needs no framework\n")
