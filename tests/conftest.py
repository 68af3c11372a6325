"""What every test may ask for: `B` runs it on each backend, `device` in each place.

pytest -m mxnet                        only this backend
D2LMULTI_REQUIRE=torch,mxnet,paddle    a missing backend fails, it is not skipped
D2LMULTI_REQUIRE=...,horovod           the same for Horovod
HYPOTHESIS_PROFILE=quick               a fifth of the examples of Hypothesis
HYPOTHESIS_PROFILE=thorough            forty times as many examples, and every case
                                       of a test that is marked `dealt`
"""

# ruff: noqa: E402  (the threads are set before the frameworks are imported)

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.metadata import version

# Before a framework is imported: one thread each, because the tensors are tiny.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from d2lmulti.backends import backend_names, framework_names, get_backend
from d2lmulti.backends.protocol import Backend
from d2lmulti.errors import BackendNotInstalled
from d2lmulti_book.notebook import BESIDE, ON_GPUS, is_installed

os.environ.update(ON_GPUS)  # also before; comparisons with NumPy need its precision

settings.register_profile(
    "default",
    deadline=None,  # the first call of an operation compiles or allocates
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=5)
settings.register_profile(
    "thorough", settings.get_profile("default"), max_examples=1000
)
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE")
    or ("ci" if os.environ.get("CI") else "default")
)


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "write tests/messages.txt again, from the errors as they are now"
    parser.addoption("--rewrite-messages", action="store_true", help=words)


def pytest_configure(config: pytest.Config) -> None:
    for name in backend_names():
        config.addinivalue_line("markers", f"{name}: runs on the backend {name}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deal the cases of a test marked `dealt` out: each to one framework, all to NumPy.

    Neighbors go to different frameworks, and so do the rows of a matrix, so each of a
    parameter's values meets each framework. A test that is named runs as it is.
    """
    if THOROUGH or any("::" in argument for argument in config.args):
        return
    frameworks = [name for name in framework_names() if is_installed(name)]
    seen: Counter[tuple[str, str]] = Counter()
    dropped = set()
    for item in items:
        given = getattr(item, "callspec", None)
        if not given or not item.get_closest_marker("dealt"):
            continue
        words = [value for value in given.params.values() if isinstance(value, str)]
        name = next((word for word in words if word in frameworks), None)
        if name is None:  # NumPy, or a framework that is not here
            continue
        test = item.nodeid.partition("[")[0], name
        place, seen[test] = seen[test], seen[test] + 1
        if frameworks[(place + place // len(frameworks)) % len(frameworks)] != name:
            dropped.add(item)
    config.hook.pytest_deselected(items=[*dropped])
    items[:] = [item for item in items if item not in dropped]


def pytest_collection_finish() -> None:
    """Let nobody look for garbage among thousands of tests and their modules."""
    gc.freeze()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker a core with `-n auto`; with `-n logical` three for two cores.

    For a third of its time, a test of processes waits.
    """
    cores = os.cpu_count() or 1
    return cores if config.option.numprocesses == "auto" else -(-3 * cores // 2)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which tests noticed which seeded bug."""
    passed = terminalreporter.getreports("passed")
    said = [item for report in passed for item in report.user_properties]
    if found := sorted(value for key, value in said if key == "bug"):
        terminalreporter.section("seeded bugs -> the first tests that turned red")
        for bug, tests in found:
            terminalreporter.write_line(f"{bug}\n    {', '.join(tests)}")


def _is_required(name: str) -> bool:
    return name in os.environ.get("D2LMULTI_REQUIRE", "").replace(" ", "").split(",")


@cache
def _load(name: str) -> Backend:
    """Import a backend; where it is missing, skip, or fail if it is required."""
    try:
        with warnings.catch_warnings():  # a framework may warn while it is imported
            warnings.simplefilter("ignore")
            found = get_backend(name)
        gc.freeze()  # a framework is no garbage: who collects need not look at it
        return found
    except BackendNotInstalled as error:
        if _is_required(name):
            pytest.fail(f"D2LMULTI_REQUIRE names {name}: {error}", pytrace=False)
        pytest.skip(str(error))


def _on(names: tuple[str, ...]) -> list:
    return [pytest.param(n, id=n, marks=getattr(pytest.mark, n)) for n in names]


@pytest.fixture(scope="session", params=_on(backend_names()))
def B(request: pytest.FixtureRequest) -> Backend:
    """Each installed backend, NumPy included."""
    return _load(request.param)


@pytest.fixture(scope="session", params=_on(framework_names()))
def framework(request: pytest.FixtureRequest) -> Backend:
    """Each installed framework: `B` without NumPy."""
    return _load(request.param)


@pytest.fixture(scope="session")
def load() -> Callable[[str], Backend]:
    """`load(name)`: one backend by name; skips where it is missing."""
    return _load


def _need(module: str) -> None:
    """Skip where a module is missing, or fail if it is required."""
    if not is_installed(module):
        how = f"{module}: {BESIDE.get(module, f'pip install {module}')}"
        if _is_required(module):
            pytest.fail(f"D2LMULTI_REQUIRE names {how}", pytrace=False)
        pytest.skip(f"needs {how}")


@pytest.fixture(scope="session")
def need() -> Callable[[str], None]:
    """`need(module)`: skips where a module is missing that is imported by its name."""
    return _need


@pytest.fixture(scope="session")
def horovod() -> None:
    """Ask for Horovod."""
    _need("horovod")


@pytest.fixture(scope="session")
def tensorflow() -> None:
    """Ask for TensorFlow."""
    _need("tensorflow")


@pytest.fixture(scope="session")
def posable() -> None:
    """Ask for a PyTorch that can pose as GPUs; a build for GPUs has its own kernels."""
    _need("torch")
    if not version("torch").endswith("+cpu"):
        pytest.skip("only PyTorch's build for CPUs can pose as GPUs")


@pytest.fixture(scope="session")
def reference() -> Backend:
    """The NumPy backend, which the frameworks are compared with."""
    return get_backend("numpy")


def _gpus_of_this_machine() -> list[str]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    listed = subprocess.run([command, "-L"], capture_output=True, text=True).stdout
    return [
        f"gpu:{i}" for i in range(listed.count("\nGPU ") + listed.startswith("GPU "))
    ]


PLACES = ["cpu", "sim:0", "sim:1", *_gpus_of_this_machine()]


@pytest.fixture(scope="session")
def places(B: Backend) -> list[str]:
    """All kinds of places where `B` can put a tensor: CPU, simulated, real GPUs."""
    return PLACES[: 3 + B.gpu_count()]


@pytest.fixture(scope="session", params=PLACES)
def device(request: pytest.FixtureRequest, B: Backend, places: list[str]) -> str:
    """Each of the places, in a test of its own."""
    if request.param not in places:
        pytest.skip(f"{B.name} sees {B.gpu_count()} GPUs here")
    return request.param


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(0)
