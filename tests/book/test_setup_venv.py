"""The set-up: which Python it refuses and in which words, and when it starts anew."""

import pytest
import setup_venv


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
    reason = setup_venv.refusal(setup, version, system, machine)
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
    assert setup_venv.refusal(setup, version, system, machine) is None


@pytest.fixture
def project(tmp_path):
    for name in ("requirements.txt", "constraints.txt", "pyproject.toml"):
        (tmp_path / name).write_text(f"# {name}\n")
    return tmp_path


@pytest.mark.parametrize("name", ["requirements.txt", "constraints.txt", "new"])
def test_a_changed_input_makes_the_environment_anew(project, name):
    before = setup_venv.fingerprint("full", (3, 11), project)
    assert setup_venv.fingerprint("full", (3, 11), project) == before
    name = "requirements-more.txt" if name == "new" else name
    with (project / name).open("a") as file:
        file.write("numpy\n")
    assert setup_venv.fingerprint("full", (3, 11), project) != before


def test_another_python_or_set_up_makes_the_environment_anew(project):
    prints = {
        setup_venv.fingerprint(setup, version, project)
        for setup in ("full", "torch")
        for version in ((3, 11), (3, 12))
    }
    assert len(prints) == 4


def test_an_interrupted_install_is_taken_up_again(tmp_path):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("whole-1.0.dist-info", "half-1.0.dist-info", "~old"):
        (packages / name).mkdir(parents=True)
        (packages / name / "METADATA").write_text("Name: x")
    (packages / "whole-1.0.dist-info" / "RECORD").write_text("")
    setup_venv.forget_half_installed(tmp_path)
    assert [path.name for path in packages.iterdir()] == ["whole-1.0.dist-info"]


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
        ("something else", ""),
    ],
)
def test_a_known_failure_comes_with_advice(said, told):
    assert told in setup_venv.advice(said)
    assert bool(told) == bool(setup_venv.advice(said))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Collecting torch==2.13.0 (from -r x)", "looking up torch"),
        ("  Downloading torch-2.13.0-cp311-x.whl (526.6 MB)", "torch (526.6 MB)"),
        ("Installing collected packages: a, b, c", "3 packages"),
        ("Requirement already satisfied: a", ""),
    ],
)
def test_pip_is_put_into_words(line, words):
    assert words in setup_venv.pip_step(line)
    assert bool(words) == bool(setup_venv.pip_step(line))


def test_a_failing_step_shows_what_was_said_last(tmp_path, capsys):
    progress = setup_venv.Progress(1, tmp_path / "log")
    code = "import sys; print('No space left on device'); sys.exit(3)"
    with pytest.raises(setup_venv.SetupError, match="disk is full") as caught:
        progress.step("a step", [setup_venv.sys.executable, "-c", code])
    assert "This step failed: a step" in str(caught.value)
    assert "No space left" in (tmp_path / "log").read_text()
    assert "1/1 a step" in capsys.readouterr().out
