"""The set-up: which Python it refuses, what it hands on to uv, what it checks."""

import re
from pathlib import Path

import pytest
import setup_venv
from book.notebooks import ROOT


@pytest.mark.parametrize(
    ("setup", "version", "system", "machine", "words"),
    [
        ("full", (3, 12), "Linux", "x86_64", "this is Python 3.12 on Linux x86_64"),
        ("full", (3, 10), "Linux", "x86_64", "need Python 3.11"),
        ("full", (3, 11), "Linux", "aarch64", "make book SETUP=torch"),
        ("full", (3, 11), "Darwin", "arm64", "make test SETUP=torch"),
        ("full", (3, 11), "Windows", "AMD64", "on Windows AMD64"),
        ("torch", (3, 10), "Linux", "x86_64", "needs Python 3.11 to 3.14"),
        ("torch", (3, 15), "Darwin", "arm64", "PYTHON=/path/to/python3"),
        ("torch", (3, 13), "Darwin", "x86_64", "Intel"),
    ],
)
def test_a_python_without_wheels_is_refused_in_one_sentence(
    setup, version, system, machine, words
):
    reason = setup_venv.invalid(setup, version, system, machine)
    assert words in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("setup", "version", "system", "machine"),
    [
        ("full", (3, 11), "Linux", "x86_64"),
        ("torch", (3, 11), "Linux", "x86_64"),
        ("torch", (3, 13), "Linux", "aarch64"),
        ("torch", (3, 14), "Darwin", "arm64"),
        ("torch", (3, 12), "Windows", "AMD64"),
    ],
)
def test_a_python_with_wheels_is_taken(setup, version, system, machine):
    assert setup_venv.invalid(setup, version, system, machine) is None


LISTED = """\
:env:.find-links='/in/the/environment'
global.cert='/certs.pem'
global.extra-index-url='file:///one file:///two'
global.find-links='/a\\n/b'
global.index-url='global'
install.index-url='install'
"""


def test_what_pip_was_told_is_handed_on_to_uv():
    settings = setup_venv.pip_settings(LISTED, {"PIP_DEFAULT_TIMEOUT": "9", "X": "1"})
    env = setup_venv.uv_environment(settings, {"UV_INDEX": "its own"})
    assert env == {
        "SSL_CERT_FILE": "/certs.pem",
        "UV_DEFAULT_INDEX": "install",  # comes before `global`
        "UV_FIND_LINKS": "/a,/b",
        "UV_HTTP_TIMEOUT": "9",
        "UV_INDEX": "its own",  # comes before all that pip knows
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # of several indexes, as pip does
    }
    settings = setup_venv.pip_settings(LISTED, {"PIP_FIND_LINKS": "/c /d"})
    assert setup_venv.uv_environment(settings, {})["UV_FIND_LINKS"] == "/c,/d"
    assert setup_venv.uv_environment(setup_venv.pip_settings("", {}), {"X": "1"}) == {
        "X": "1"
    }


LOCKS = {
    "requirements.lock": "requirements.txt",
    "requirements-torch.lock": "requirements-torch.txt",
    "requirements-horovod.lock": "requirements-horovod.txt",
}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_file_of_a_lock_is_hashed_and_no_address_stands_in_it(lock):
    text = (ROOT / lock).read_text()
    assert "://" not in text and "+cpu" not in text
    for pin in sum(setup_venv.split_lock(text), []):
        first, *hashes = pin.replace("\\\n", "").split("--hash=")
        assert re.match(r"[\w.-]+==[\w.]+ *(;.*)?$", first), pin
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64} *", h) for h in hashes)


@pytest.mark.parametrize(("lock", "wanted"), LOCKS.items())
def test_a_lock_holds_what_its_requirements_ask_for(lock, wanted):
    """Whoever edits a pin runs `make lock`."""
    locked = set(re.findall(r"^[\w.-]+==[\w.]+", (ROOT / lock).read_text(), re.M))
    names = [wanted]
    if "-r requirements-common.txt" in (ROOT / wanted).read_text():
        names.append("requirements-common.txt")
    for name in names:
        pins = re.findall(r"^[\w.-]+==[\w.]+", (ROOT / name).read_text(), re.M)
        assert pins and set(pins) <= locked


def test_torch_is_parted_from_the_rest_with_its_cuda_libraries():
    text = (ROOT / "requirements.lock").read_text()
    torch, rest = setup_venv.split_lock(text)
    names = {pin.split("==")[0] for pin in torch}
    assert {"torch", "triton", "nvidia-nccl-cu13", "cuda-bindings"} <= names
    assert all(re.match(r"torch|triton|nvidia|cuda", name) for name in names)
    assert len(torch) + len(rest) == len(re.findall(r"^\w.*==", text, re.M))


class Recorded(setup_venv.Installer):
    """Runs nothing, and says that some build of torch would be installed."""

    def __init__(self, tmp_path, build):
        super().__init__(tmp_path / "log", {})
        self.build, self.ran = build, []

    def run(self, what, *command):
        pins = self.log.with_suffix(".txt")
        hashed = pins.read_text() if "--require-hashes" in command else None
        self.ran.append((" ".join(command[:-1]), command[-1], hashed))
        return f"Would install 1 package\n + torch=={self.build}\n"


@pytest.mark.parametrize(
    ("build", "index", "checked"),
    [("2.13.0", "", True), ("2.13.0+cpu", "", False), ("2.13.0", "an index", False)],
)
def test_all_but_a_torch_of_your_own_is_checked(tmp_path, build, index, checked):
    installer = Recorded(tmp_path, build)
    setup_venv.install(installer, ("uv",), "requirements.lock", index)
    (asked, _, _), (_, _, pins), *more = installer.ran
    assert "torch==2.13.0" in asked
    assert ("\ntorch==2.13.0" in "\n" + pins) == checked
    assert ("nvidia-" in pins) == checked
    assert "paddlepaddle==" in pins and pins.count("--hash=") > 1000
    assert len(more) == (not checked)
    for command, last, hashed in more:
        assert hashed is None
        assert ("--index", "an index") == (command.split()[-1], last) or not index


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(setup_venv, "ROOT", tmp_path)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


@pytest.fixture
def steps(project, monkeypatch):
    """What a build would run, with its commands; `steps.failing` fails."""

    class Steps(list):
        failing = None

    ran = Steps()

    def run(self, what, *command):
        ran.append(what)
        if what == "virtual environment":
            (project / ".venv" / "bin").mkdir(parents=True)
        if ran.failing and ran.failing in what:
            raise setup_venv.SetupError("failed")
        return " + torch==2.13.0"

    monkeypatch.setattr(setup_venv.Installer, "run", run)
    monkeypatch.setattr(setup_venv, "runs", lambda python, code: True)
    monkeypatch.setattr(setup_venv, "refusal", lambda *a: None)
    monkeypatch.setattr(setup_venv, "ask_pip", lambda: "")
    monkeypatch.setattr(setup_venv.shutil, "which", lambda name, path=None: "/bin/uv")
    return ran


def in_order(steps):
    """Take away which import it is: they are tried at the same time."""
    return [re.sub("^(does it import).*", r"\1", what) for what in steps]


def test_made_once_updated_where_it_is_and_made_anew_elsewhere(
    steps, project, monkeypatch
):
    setup_venv.build("full", "")
    made = list(steps)
    assert made[0] == "virtual environment"
    imports = [what for what in made if what.startswith("does it import? ")]
    assert all(name in str(imports) for name in ("torch", "mxnet", "paddle", "nbval"))
    setup_venv.build("full", "")
    assert steps == made  # nothing more
    (project / "pyproject.toml").write_text("[changed]")
    setup_venv.build("full", "")
    assert in_order(steps) == in_order(made + made[1:])
    steps.clear()
    monkeypatch.setattr(setup_venv, "ROOT", project / ".." / project.name)  # moved
    setup_venv.build("full", "")
    assert in_order(steps) == in_order(made)


@pytest.mark.parametrize("failing", ["virtual", "packages", "import"])
def test_half_an_environment_is_made_anew(steps, failing):
    steps.failing = failing
    with pytest.raises(setup_venv.SetupError):
        setup_venv.build("full", "")
    steps.failing = None
    steps.clear()
    setup_venv.build("full", "")
    assert steps[0] == "virtual environment"


def test_without_uv_pip_brings_the_one_of_the_lock(steps, project, monkeypatch):
    monkeypatch.setattr(
        setup_venv.shutil, "which", lambda name, path=None: path and "/venv/bin/uv"
    )
    setup_venv.build("full", "")
    assert steps[:2] == ["virtual environment", "uv"]


def test_a_library_that_the_system_lacks_comes_from_a_wheel(tmp_path, monkeypatch):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "torch").mkdir(parents=True)
    for name in ("libthere.so.1", "libmissing.so.1"):
        (packages / "torch" / name).write_text("")
    borrowed = {name: f"torch/{name}" for name in ("libthere.so.1", "libmissing.so.1")}
    monkeypatch.setattr(setup_venv, "BORROWED", borrowed)
    monkeypatch.setattr(setup_venv, "runs", lambda python, code: "there" in code)
    setup_venv.borrow_libraries("python", tmp_path)
    (pth,) = packages.glob("*.pth")
    assert str(packages / "torch" / "libmissing.so.1") in pth.read_text()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ImportError: libGL.so.1: cannot open shared object file", "libGL.so.1"),
        ("ensurepip is not available", "apt-get install python3"),
        ("OSError: [Errno 28] No space left on device", "disk"),
        ("Temporary failure in name resolution", "network"),
        ("error: Failed to fetch\n  operation timed out", "network"),
        ("  x Hash mismatch for `torch`", "not the one that the lock names"),
        ("something else", ""),
    ],
)
def test_a_known_failure_comes_with_advice(said, told):
    assert told in setup_venv.advice(said)
    assert bool(told) == bool(setup_venv.advice(said))


def test_a_failing_step_shows_what_was_said_last(tmp_path, capsys):
    installer = setup_venv.Installer(tmp_path / "log", None)
    code = "import sys; print('No space left on device'); sys.exit(3)"
    with pytest.raises(setup_venv.SetupError, match="disk is full") as caught:
        installer.run("a step", setup_venv.sys.executable, "-c", code)
    assert "This step failed: a step" in str(caught.value)
    assert "No space left" in Path(tmp_path / "log").read_text()
    assert "a step" in capsys.readouterr().out
