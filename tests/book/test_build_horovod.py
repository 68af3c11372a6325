"""Building Horovod: what is edited, when it is built anew, and what is said if not."""

import sys

import build_horovod
import pytest
from build_horovod import CannotBuild

VERSIONS = {"torch": "2.13.0", "mxnet": "1.9.1"}


@pytest.fixture
def source(tmp_path):
    for name, old, _ in build_horovod.EDITS:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"first\n{old}\nlast\n")
    return tmp_path


def test_every_edit_is_made_once(source):
    build_horovod.edit(source)
    for name, old, new in build_horovod.EDITS:
        text = (source / name).read_text()
        assert old not in text and f"first\n{new}\nlast\n" in text


@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("edit", range(len(build_horovod.EDITS)))
def test_another_source_is_refused(source, edit, times):
    name, old, _ = build_horovod.EDITS[edit]
    text = (source / name).read_text()
    (source / name).write_text(text.replace(old, old * times))
    with pytest.raises(CannotBuild, match=f"once in {name} .*, got {times} times"):
        build_horovod.edit(source)


def test_another_framework_or_choice_is_another_wheel(monkeypatch):
    before = build_horovod.fingerprint(VERSIONS)
    assert build_horovod.fingerprint(dict(VERSIONS)) == before
    assert build_horovod.fingerprint(VERSIONS | {"torch": "2.13.0+cpu"}) != before
    monkeypatch.setitem(build_horovod.CHOICES, "HOROVOD_WITHOUT_MPI", "0")
    assert build_horovod.fingerprint(VERSIONS) != before


@pytest.mark.parametrize(
    ("there", "missing"),
    [({"g++", "make"}, None), ({"make"}, "a C++ compiler"), ({"c++"}, "make")],
)
def test_what_the_machine_lacks_is_named(monkeypatch, there, missing):
    monkeypatch.delenv("CXX", raising=False)
    found = build_horovod.tool_missing(lambda name: name if name in there else None)
    assert found == missing


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "  error: subprocess-exited-with-error\n\n  x setup.py did not run\n"
            "  -- The CXX compiler\n  CMake Error at Find.cmake:230 (message):\n"
            "    Could NOT find CUDAToolkit (missing: CUDA_CUDART)\n  Call Stack:\n",
            "Could NOT find CUDAToolkit (missing: CUDA_CUDART)",
        ),
        ("g++ a.cc\na.cc:1: fatal error: x.h: No such file\n1 error.\n", "a.cc:1: "),
        ("WARNING: retry\nERROR: No matching distribution\n", "ERROR: No matching"),
        ("Traceback:\n  x\nOSError: libmpi.so.1: cannot open\n", "OSError: libmpi"),
        ("Killed\n\n", "Killed"),
        ("", "it said nothing"),
    ],
)
def test_the_cause_of_a_failure_is_one_line(said, told):
    assert build_horovod.cause(said.splitlines(True)).startswith(told)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with the frameworks and a compiler, where nothing was ever built."""
    monkeypatch.setattr(build_horovod, "frameworks_installed", lambda: VERSIONS)
    monkeypatch.setattr(build_horovod, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(build_horovod, "tool_missing", lambda: None)
    monkeypatch.setattr(build_horovod, "ROOT", tmp_path)
    monkeypatch.setattr(build_horovod, "LOG", tmp_path / "_build" / "log")
    monkeypatch.setattr(build_horovod.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(build_horovod.signal, "signal", lambda *a: None)
    return tmp_path


@pytest.fixture
def steps(bare, monkeypatch):
    """What is run, word by word; `steps.failing` fails."""

    class Steps(list):
        failing = None

    ran = Steps()

    def step(what, *command):
        ran.append(what)
        if ran.failing and ran.failing in what:
            raise CannotBuild(f"{what} failed: a reason")

    def compile_wheel(source, pip):
        step("compiling")
        (source / "horovod-0.28.1.whl").write_text("")
        return source / "horovod-0.28.1.whl"

    def fetch(work):
        step("source")
        return work, []

    monkeypatch.setattr(build_horovod, "step", step)
    monkeypatch.setattr(build_horovod, "fetch", fetch)
    monkeypatch.setattr(build_horovod, "compile_wheel", compile_wheel)
    return ran


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["build_horovod.py", *arguments])
    build_horovod.main()


RUNS = ["does it run with torch?", "does it run with mxnet?"]


def test_built_once_then_left_alone_then_taken_from_the_cache(steps, bare, monkeypatch):
    run(monkeypatch)
    assert steps == ["source", "compiling", "installing", *RUNS]
    monkeypatch.setattr(build_horovod.importlib.util, "find_spec", lambda name: name)
    run(monkeypatch)
    assert len(steps) == 5  # nothing more
    (bare / ".horovod-made-from").write_text("another")
    monkeypatch.setattr(build_horovod, "tool_missing", lambda: "make")  # not needed
    run(monkeypatch)
    assert steps[5:] == ["installing", *RUNS]


@pytest.mark.parametrize("failing", ["source", "compiling", "with mxnet"])
def test_what_fails_is_said_in_one_line_and_the_tests_go_on(
    steps, monkeypatch, capsys, failing
):
    steps.failing = failing
    run(monkeypatch, "--if-possible")
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("Going on without Horovod and its tests: ")
    assert f"{failing}" in last and "a reason" in last and "make horovod" in last
    assert ("removing it again" in steps) == (failing == "with mxnet")

    with pytest.raises(SystemExit, match="Horovod cannot be built: .*a reason"):
        run(monkeypatch)  # `make horovod`, and BESIDE=horovod: an error


def test_a_failed_compilation_is_not_tried_by_every_test_run(
    steps, monkeypatch, capsys
):
    steps.failing = "compiling"
    run(monkeypatch, "--if-possible")
    first = capsys.readouterr().out.splitlines()[-1]
    steps.clear()
    run(monkeypatch, "--if-possible")
    assert capsys.readouterr().out.splitlines() == [first] and not steps
    monkeypatch.setitem(VERSIONS, "torch", "2.14.0")  # another build may do
    run(monkeypatch, "--if-possible")
    assert "compiling" in steps


def test_a_network_that_failed_is_asked_again(steps, monkeypatch):
    steps.failing = "source"
    run(monkeypatch, "--if-possible")
    steps.failing = None
    run(monkeypatch, "--if-possible")
    assert steps == ["source", "source", "compiling", "installing", *RUNS]


def test_without_a_compiler_it_says_what_to_install(steps, monkeypatch, capsys):
    monkeypatch.setattr(build_horovod, "tool_missing", lambda: "a C++ compiler")
    with pytest.raises(SystemExit, match="sudo apt-get install g"):
        run(monkeypatch)
    run(monkeypatch, "--if-possible")
    (line,) = capsys.readouterr().out.splitlines()
    assert "a C++ compiler was not found" in line and not steps


def test_a_step_keeps_what_was_said(bare, capsys):
    build_horovod.LOG.parent.mkdir()
    code = "print('hello'); print('fatal error: no'); raise SystemExit(3)"
    with pytest.raises(CannotBuild, match="step failed: fatal error: no .*_build.log"):
        build_horovod.step("a step", sys.executable, "-c", code)
    assert "hello" in build_horovod.LOG.read_text()
    assert "a step ..." in capsys.readouterr().out


def test_the_full_set_up_is_named_where_a_framework_is_missing(monkeypatch):
    def none(name):
        raise build_horovod.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(build_horovod.metadata, "version", none)
    with pytest.raises(CannotBuild, match="torch is not installed here.*make setup"):
        build_horovod.frameworks_installed()
