"""The command line with closed, full and broken streams, and with Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from d2lmulti.cli import main
from d2lmulti.interrupt import heeded

PROGRAM = f"{sys.executable} -m d2lmulti"
QUICK = "train --backend numpy --model mlp --epochs 1 --batch-size 512"


def shell(command: str) -> subprocess.CompletedProcess:
    """Run it in a shell that gives the exit code of a pipe's first broken part."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_closed_stderr_takes_nothing_from_the_result(tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    done = shell(f"{PROGRAM} {QUICK} --checkpoint {file} 2>&-")
    assert done.returncode == 0 and "test accuracy" in done.stdout
    assert file.read_bytes()[:2] == b"PK"  # and nobody has written into it


def test_a_closed_stdout_still_trains(tmp_path: Path) -> None:
    done = shell(f"{PROGRAM} {QUICK} --json {tmp_path / 'h.json'} >&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "h.json").stat().st_size > 100


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", [QUICK, "train --help"])
def test_a_full_disk_behind_stdout_is_said(command: str) -> None:
    done = shell(f"{PROGRAM} {command} >/dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("error: expected to write to the standard output")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_is_gone_is_no_error() -> None:
    # The reader ends before a line is written, so that the pipe is broken for sure.
    done = shell(f"{PROGRAM} {QUICK} | (exec 0<&-; sleep 0)")
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    "module", ["datetime", "d2lmulti.checks", "d2lmulti.plans", "d2lmulti.cli"]
)
def test_ctrl_c_is_one_line_from_the_first_import_on(module: str) -> None:
    command = [sys.executable, "-X", "importtime", *PROGRAM.split()[1:]]
    process = subprocess.Popen(
        [*command, *"train --backend numpy --epochs 99999".split()],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:  # what is imported, while it is imported
        if line.endswith(f" {module}\n"):
            break
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    words = [s for s in told.splitlines(keepends=True) if "import time:" not in s]
    assert "".join(words) == "interrupted\n"
    assert process.returncode == 130


def test_ctrl_c_is_one_line_while_it_trains(tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    options = f"--model mlp --epochs 99999 --save-every 1 --checkpoint {file}"
    process = subprocess.Popen(
        [*PROGRAM.split(), *f"train --backend numpy {options}".split()],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not file.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, "interrupted\n")
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []


def test_ctrl_c_is_not_lost_in_a_finalizer(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, d2lmulti.training.loop as loop\n"
        "class Slow:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        for _ in range(10**5): pass\n"
        "train = loop.train\n"
        "def interrupted(*args, **kwargs):\n"
        "    Slow()\n"
        "    return train(*args, **kwargs)\n"
        "loop.train = interrupted\n"
    )
    done = subprocess.run(
        [*PROGRAM.split(), *"train --backend numpy --epochs 99999".split()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()]
        )},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_ctrl_c_during_an_import_is_not_a_missing_framework(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(10**7): pass\n"
        "except BaseException as error:\n"
        "    raise ImportError('the core is missing') from None\n"
    )
    done = subprocess.run(
        [*PROGRAM.split(), "train", "--backend", "torch"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()]
        )},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_ctrl_c_waits_for_the_end_of_an_import_and_twice_does_not() -> None:
    after: list[str] = []
    # In a shell's background Ctrl-C is ignored, and the tests may run there.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), heeded():
            os.kill(os.getpid(), signal.SIGINT)
            after.append("the rest of the import")
        with pytest.raises(KeyboardInterrupt), heeded():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            after.append("never")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert after == ["the rest of the import"]


def test_an_unknown_default_backend_fails_doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("D2LMULTI_BACKEND", "jax")
    assert main(["doctor"]) == 2
    assert "got 'jax'; set D2LMULTI_BACKEND" in capsys.readouterr().err
