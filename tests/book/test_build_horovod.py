"""Building Horovod: what is edited, when it is built anew, what is said without g++."""

import pathlib

import build_horovod
import pytest
from setup_venv import SetupError

OLD, NEW = "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"


@pytest.fixture
def source(tmp_path):
    for name in build_horovod.EDITS:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"project(x)\n{OLD}\n")
    return tmp_path


def test_the_source_is_made_cpp_17_in_two_places(source):
    build_horovod.edit(source)
    texts = [path.read_text() for path in source.rglob("CMakeLists.txt")]
    assert texts == [f"project(x)\n{NEW}\n"] * 2


@pytest.mark.parametrize("text", ["", OLD * 2])
def test_another_source_is_refused(source, text):
    (source / "horovod/torch/CMakeLists.txt").write_text(text)
    with pytest.raises(SetupError, match=f"once in .*, got {text.count(OLD)} times"):
        build_horovod.edit(source)


def test_another_framework_or_choice_is_another_wheel(monkeypatch):
    frameworks = {"torch": "2.13.0+cpu", "mxnet": "1.9.1"}
    before = build_horovod.fingerprint(frameworks)
    assert build_horovod.fingerprint(dict(frameworks)) == before
    assert build_horovod.fingerprint(frameworks | {"torch": "2.13.0"}) != before
    monkeypatch.setitem(build_horovod.CHOICES, "HOROVOD_WITHOUT_MPI", "0")
    assert build_horovod.fingerprint(frameworks) != before


@pytest.mark.parametrize(
    ("there", "missing"),
    [({"g++", "make"}, None), ({"make"}, "a C++ compiler"), ({"c++"}, "make")],
)
def test_what_the_machine_lacks_is_named(monkeypatch, there, missing):
    monkeypatch.delenv("CXX", raising=False)
    found = build_horovod.tool_missing(lambda name: name if name in there else None)
    assert found == missing


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with the frameworks, but neither Horovod nor a compiler."""
    versions = {"torch": "2.13.0", "mxnet": "1.9.1"}
    monkeypatch.setattr(build_horovod, "frameworks_installed", lambda: versions)
    monkeypatch.setattr(build_horovod, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(build_horovod, "tool_missing", lambda: "a C++ compiler")
    monkeypatch.setattr(build_horovod.sys, "prefix", str(tmp_path))
    return tmp_path


def test_without_a_compiler_it_says_what_to_install(bare, capsys):
    with pytest.raises(SetupError, match="sudo apt-get install g"):
        build_horovod.build()
    build_horovod.build(if_possible=True)
    assert "Skipping Horovod" in capsys.readouterr().out


def test_the_right_build_is_left_alone(bare, monkeypatch):
    key = build_horovod.fingerprint(build_horovod.frameworks_installed())
    pathlib.Path(bare, ".horovod-made-from").write_text(key)
    monkeypatch.setattr(build_horovod.importlib.util, "find_spec", lambda name: name)
    build_horovod.build()  # without a compiler, so it can only have done nothing
    pathlib.Path(bare, ".horovod-made-from").write_text("another")
    with pytest.raises(SetupError):
        build_horovod.build()


def test_a_kept_wheel_needs_no_compiler(bare, monkeypatch):
    key = build_horovod.fingerprint(build_horovod.frameworks_installed())
    wheel = bare / "cache" / key / "horovod-0.28.1-cp311.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_text("")
    ran = []

    class Recorded(build_horovod.Progress):
        def run(self, command, what):
            ran.append([str(word) for word in command])

    monkeypatch.setattr(build_horovod, "Progress", Recorded)
    monkeypatch.setattr(build_horovod, "ROOT", bare)
    build_horovod.build()
    assert ran[0][-1] == str(wheel)
    assert "install" in ran[0]
    assert (bare / ".horovod-made-from").read_text() == key


def test_the_full_set_up_is_named_where_a_framework_is_missing(monkeypatch):
    def none(name):
        raise build_horovod.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(build_horovod.metadata, "version", none)
    with pytest.raises(SetupError, match="torch is not installed here.*make horovod"):
        build_horovod.frameworks_installed()
