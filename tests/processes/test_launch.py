"""Starting processes: results, output, failures, time-outs, and who is left behind."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import d2lmulti
from d2lmulti.errors import D2LMultiError, InvalidInput, PeerError
from d2lmulti.processes.launcher import launch
from d2lmulti.processes.process_group import start, started
from d2lmulti.processes.spawn import ProcessFailed, free_port
from d2lmulti.processes.status_table import RUNNING, STARTING, StatusTable

pytestmark = pytest.mark.numpy  # NumPy's processes start in half a second


def run(function, n=2, *args, **options):
    return launch(function, n, *args, backend="numpy", **options)


def test_values_and_output_come_in_rank_order(monkeypatch) -> None:
    def work(first, *, second):
        group = started()
        rank = group.local_ranks[0]
        time.sleep(0.2 * (1 - rank))  # rank 1 ends before rank 0
        print(f"first line of {rank}\nsecond line")
        print("warned", file=sys.stderr)
        level = logging.getLogger().level
        return rank, group.size, first, second, os.environ["OMP_NUM_THREADS"], level

    with monkeypatch.context() as patch:
        patch.setattr(logging.getLogger(), "level", logging.ERROR)
        done = run(work, 2, "a", second="b", threads=3)
    assert done.values == [(r, 2, "a", "b", "3", logging.ERROR) for r in range(2)]
    assert repr(done).splitlines() == [
        f"rank {rank}: {line}"
        for rank in range(2)
        for line in (f"first line of {rank}", "second line")
    ]
    assert done.errors == ["warned\n"] * 2
    assert done.restarts == 0


def test_the_first_failure_is_shown_and_all_are_stopped(tmp_path: Path) -> None:
    def work():
        rank = started().local_ranks[0]
        (tmp_path / str(rank)).write_text(str(os.getpid()))
        if rank == 1:
            while not (tmp_path / "0").exists():
                time.sleep(0.01)
            raise ZeroDivisionError("of rank 1")
        # Without rank 1 this fails too, but later and because of it.
        d2lmulti.allreduce([d2lmulti.get_backend().array([1.0])])
        time.sleep(60)

    with pytest.raises(ProcessFailed, match="exit code 1 from rank 1") as caught:
        run(work)
    assert "ZeroDivisionError: of rank 1" in str(caught.value)
    assert_ended(tmp_path)


def test_the_one_who_left_is_named_though_he_ends_last() -> None:
    def work():
        if started().local_ranks[0] == 0:
            raise PeerError("left alone")
        time.sleep(1)
        raise ZeroDivisionError("the reason")

    with pytest.raises(ProcessFailed, match="exit code 1 from rank 1") as caught:
        run(work)
    assert "ZeroDivisionError: the reason" in str(caught.value)


def test_different_calls_are_an_error_that_names_ranks_and_calls() -> None:
    def work(shapes, algorithm):
        x = d2lmulti.get_backend().zeros(shapes[started().local_ranks[0]], "float32")
        if algorithm == "native":
            started().engine.begin(f"all-reduce of {x.shape}")
            started().engine.start("allreduce", [x]).wait()
        elif algorithm == "none":
            call = (d2lmulti.reduce, d2lmulti.broadcast)[started().local_ranks[0]]
            call([x], 0)
        else:
            d2lmulti.allreduce([x], algorithm)

    for algorithm in ("ring", "native"):
        with pytest.raises(ProcessFailed, match="expected every rank to make the same"):
            run(work, 2, [(5,), (6,)], algorithm)
    with pytest.raises(ProcessFailed) as caught:  # both wait, each in another call
        run(work, 2, [(5,), (5,)], "none")
    for line in (
        "PeerError: expected every rank to make the same calls",
        "rank 0: at call 1, sum reduce to rank 0 of (5,) float32; waits for rank 1 si",
        "rank 1: at call 1, broadcast from rank 0 of (5,) float32; waits for rank 0 si",
    ):
        assert line in str(caught.value)


def test_a_rank_that_has_finished_keeps_nobody_waiting() -> None:
    def work():
        if started().local_ranks[0] == 0:
            d2lmulti.allreduce([d2lmulti.get_backend().array([1.0])], "ring")

    with pytest.raises(ProcessFailed, match="rank 1: finished"):
        run(work)


def test_a_rank_that_hangs_is_named() -> None:
    def work():
        x = d2lmulti.get_backend().array([1.0])
        d2lmulti.allreduce([x])
        if started().local_ranks[0] == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        d2lmulti.allreduce([x])

    with pytest.raises(ProcessFailed) as caught:
        run(work, timeout=8)  # a busy machine starts them in some seconds
    assert "within 8 seconds, got rank 0, rank 1 still running" in str(caught.value)
    assert "Stopped by a signal: rank 1." in str(caught.value)
    lines = str(caught.value).splitlines()[-2:]
    assert lines[0].startswith("rank 0: at call 2, sum all-reduce of (1,) float64")
    assert "; waits for rank 1 since " in lines[0]
    assert lines[1] == "rank 1: at call 1, sum all-reduce of (1,) float64"


def test_a_group_is_started_again(tmp_path: Path) -> None:
    def work(kills):
        attempt = int(os.environ["D2LMULTI_RESTART"])
        x = d2lmulti.get_backend().array([1.0])
        d2lmulti.allreduce([x])
        if started().local_ranks[0] == attempt % 2 and attempt < kills:
            os.kill(os.getpid(), signal.SIGKILL)
        d2lmulti.allreduce([x])
        return float(x.value[0]), attempt

    done = run(work, 2, 2, restarts=2)
    assert (done.values, done.restarts) == ([(4.0, 2)] * 2, 2)
    with pytest.raises(
        ProcessFailed, match=r"got SIGKILL \(it was killed\) from rank 1"
    ):
        run(work, 2, 2, restarts=1)


LAUNCHER = """
import os, subprocess, sys, time
from pathlib import Path
from d2lmulti.processes.launcher import launch
from d2lmulti.processes.process_group import started

def work(folder):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    path = Path(folder) / str(started().local_ranks[0])
    path.with_suffix(".child").write_text(str(child.pid))
    path.write_text(os.environ["D2LMULTI_FOLDER"] + " " + str(os.getpid()))
    time.sleep(60)

launch(work, 2, sys.argv[1])
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_whole_tree_ends_with_the_launcher(tmp_path: Path, how: int) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: all((tmp_path / name).exists() for name in "01"))
    launcher.send_signal(how)
    launcher.wait()
    assert_ended(tmp_path)
    folder = (tmp_path / "0").read_text().split()[0]
    wait_until(lambda: not Path(folder).exists())


def test_nobody_is_told_what_is_not_there(tmp_path: Path) -> None:
    StatusTable.create(tmp_path / "board", 2)
    table = StatusTable(tmp_path / "board", 2, 1)
    assert table.read(0).state == STARTING
    table.set_state(RUNNING)
    table.begin("a call " + "long " * 200)
    table.wait_for(0)
    assert table.in_words().startswith("rank 0: still starting\nrank 1: at call 1, a c")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 0}, "as n, got 0"),
        ({"threads": 0}, "as threads, got 0"),
        ({"restarts": -1}, "as restarts, got -1"),
        ({"timeout": 0}, "above 0 as timeout, got 0"),
        ({"engine": "telepathy"}, "shared_memory.* as engine, got 'telepathy'"),
    ],
)
def test_impossible_groups(options: dict, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        launch(lambda: None, **options)


def test_a_process_outside_a_launch_cannot_start() -> None:
    with pytest.raises(InvalidInput, match="a process that a launcher has started"):
        start()
    assert started() is None


def assert_ended(folder: Path) -> None:
    """Every process whose number stands in a file of `folder` has ended."""
    for path in folder.iterdir():
        pid = int(path.read_text().split()[-1])
        wait_until(lambda pid=pid: not alive(pid))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # a child of nobody may stay listed for a moment


def wait_until(true, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def test_a_function_of_a_module_that_others_cannot_find(tmp_path: Path) -> None:
    path = tmp_path / "far_away.py"
    path.write_text(
        "def answer(x):\n    return helper(x)\ndef helper(x):\n    return 2 * x"
    )
    import importlib.util

    spec = importlib.util.spec_from_file_location("far_away", path)
    module = sys.modules["far_away"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        assert run(module.answer, 1, np.float32(21)).values == [42]
    finally:
        del sys.modules["far_away"]


def test_a_free_port_is_looked_for_again_but_not_for_ever(monkeypatch) -> None:
    refusals: list[int] = []

    class Refusing(socket.socket):
        def bind(self, address) -> None:
            refusals.append(address[1])
            if len(refusals) in (*range(1, 4), *range(5, 205)):
                raise PermissionError(13, "not this one")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Refusing)
    assert free_port() == refusals[3]
    with pytest.raises(PermissionError, match="not this one"):
        free_port()
    assert len(refusals) == 104


def test_a_function_that_removes_its_folder_is_an_error_in_words() -> None:
    def work():
        shutil.rmtree(os.environ["D2LMULTI_FOLDER"], ignore_errors=True)

    with pytest.raises(D2LMultiError):
        run(work)


def test_a_value_that_cannot_be_unpickled_is_told_with_its_rank() -> None:
    class Unreadable:
        def __reduce__(self):
            return int, ("x",)

    with pytest.raises(ProcessFailed, match="unpickle from rank 0"):
        run(Unreadable)


@pytest.mark.mxnet
def test_a_function_may_hold_mxnet_arrays(load) -> None:
    x = load("mxnet").array(np.arange(3.0))
    done = launch(lambda: x * 2, 2, backend="mxnet")
    assert [value.tolist() for value in done.values] == [[0, 2, 4]] * 2
