"""Starting processes: results, failures, time limits, and who is left behind."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import d2lmulti
from d2lmulti.errors import InvalidInput, PeerError
from d2lmulti.processes.launcher import Ranks, launch
from d2lmulti.processes.process_group import started
from d2lmulti.processes.spawn import Processes, ProcessFailed, environment, state_of

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
        told = os.environ["OMP_NUM_THREADS"], os.environ["CUDA_VISIBLE_DEVICES"]
        level = logging.getLogger().level
        return rank, group.size, first, second, *told, sys.stdin.read(), level

    with monkeypatch.context() as patch:
        patch.setattr(logging.getLogger(), "level", logging.ERROR)
        patch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        done = run(work, 2, "a", second="b", threads=3)
    seen = 2, "a", "b", "3", "0,1", "", logging.ERROR
    assert done.values == [(rank, *seen) for rank in range(2)]
    assert repr(done).splitlines() == [
        f"rank {rank}: {line}"
        for rank in range(2)
        for line in (f"first line of {rank}", "second line")
    ]
    assert done.errors == ["warned\n"] * 2
    assert done.restarts == 0


def test_the_first_failure_is_shown_and_all_are_ended(tmp_path: Path) -> None:
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
    assert_ended([int(path.read_text()) for path in tmp_path.iterdir()])


def test_the_rank_that_left_is_named_though_it_ends_last() -> None:
    def work():
        if started().local_ranks[0] == 0:
            raise PeerError("left alone")
        time.sleep(1)
        raise ZeroDivisionError("the reason")

    with pytest.raises(ProcessFailed, match="from rank 1(?s:.*)the reason"):
        run(work)


def test_a_result_that_cannot_be_unpickled_names_its_rank() -> None:
    class Odd:
        def __reduce__(self) -> tuple:
            return int, ("x",)

    with pytest.raises(InvalidInput, match="from rank 0, got ValueError"):
        run(Odd)


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
    text = str(caught.value)
    assert "rank 0:" in text and "rank 1:" in text
    # Of two that fail at once, the later one may find the first one gone.
    calls = (
        "sum reduce to rank 0 of (5,) float32",
        "broadcast from rank 0 of (5,) float",
    )
    assert any(f"at call 1, {call}" in text for call in calls), text


def test_a_rank_that_has_finished_keeps_nobody_waiting() -> None:
    def work():
        if started().local_ranks[0] == 0:
            d2lmulti.allreduce([d2lmulti.get_backend().array([1.0])], "ring")

    with pytest.raises(ProcessFailed, match="rank 1: finished"):
        run(work)


def test_a_failure_just_before_all_have_ended_is_seen() -> None:
    def done() -> bool:
        (process,) = group.members  # it fails now, after the last look at failures
        process.write("go")
        process.popen.wait()
        return not group.alive

    with Processes() as group:
        command = ["-c", "input(); raise SystemExit(3)"]
        group.spawn("rank 0", command, environment(), subprocess.PIPE)
        with pytest.raises(ProcessFailed, match="exit code 3 from rank 0"):
            group.wait(done, 60, str)


def test_a_rank_that_hangs_is_named() -> None:
    def work():
        x = d2lmulti.get_backend().array([1.0])
        d2lmulti.allreduce([x])
        if started().local_ranks[0] == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        d2lmulti.allreduce([x])

    with Ranks(2, backend="numpy") as ranks:
        ranks(os.getpid)  # their start may take long on a busy machine
        ranks._timeout = 3
        with pytest.raises(ProcessFailed) as caught:
            ranks(work)
    assert "within 3 seconds, got rank 0, rank 1 still running" in str(caught.value)
    assert "Stopped by a signal: rank 1." in str(caught.value)
    lines = str(caught.value).splitlines()[-2:]
    assert lines[0].startswith("rank 0: at call 2, sum all-reduce of (1,) float64")
    assert "; waits for rank 1 since " in lines[0]
    assert lines[1] == "rank 1: at call 1, sum all-reduce of (1,) float64"


def test_a_group_is_started_again() -> None:
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
    with pytest.raises(ProcessFailed, match="SIGKILL .* from rank 1"):
        run(work, 2, 2, restarts=1)


LAUNCHER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from d2lmulti.processes.launcher import launch
from d2lmulti.processes.process_group import started

def work(folder):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    path = Path(folder) / str(started().local_ranks[0])
    path.with_suffix(".new").write_text(
        f"{os.getpid()} {child.pid} {os.environ['D2LMULTI_FOLDER']}")
    path.with_suffix(".new").rename(path)
    if path.name == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)

launch(work, 2, sys.argv[1], backend="numpy")
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_ranks_end_with_the_launcher(tmp_path: Path, how: int) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.DEVNULL,
        # A shell in the background may have told its programs to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    files = [tmp_path / str(rank) for rank in range(2)]
    wait_until(lambda: all(file.exists() for file in files))
    launcher.send_signal(how)
    launcher.wait()
    told = [file.read_text().split() for file in files]
    assert_ended([int(rank) for rank, _, _ in told])
    children, folder = [int(child) for _, child, _ in told], Path(told[0][2])
    if how == signal.SIGINT:  # Ctrl-C
        assert_ended(children)
        assert not folder.exists()
    else:  # which leaves no time to clean up
        for child in children:
            os.kill(child, signal.SIGKILL)
        shutil.rmtree(folder)


def assert_ended(pids: list[int]) -> None:
    for pid in pids:
        wait_until(lambda pid=pid: state_of(pid) in ("", "Z"))


def wait_until(true: Callable[[], object], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def test_a_function_of_a_module_that_others_cannot_find(tmp_path: Path) -> None:
    path = tmp_path / "far_away.py"
    path.write_text(
        "def answer(x):\n    return helper(x)\ndef helper(x):\n    return 2 * x"
    )
    spec = importlib.util.spec_from_file_location("far_away", path)
    module = sys.modules["far_away"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        assert run(module.answer, 1, np.float32(21)).values == [42]
    finally:
        del sys.modules["far_away"]


# -- processes that stay ---------------------------------------------------------------


def test_the_same_processes_run_one_function_after_another() -> None:
    def who(word, *, more=0):
        return os.getpid(), started().local_ranks, started().size, word, more

    def summed(number):
        B, rank = d2lmulti.get_backend(), started().local_ranks[0]
        data = [B.array(np.full(3, number + rank, "float64"))]
        d2lmulti.allreduce(data, "ring")
        return B.numpy(data[0]).tolist()

    with Ranks(2, backend="numpy", timeout=60) as ranks:
        with ThreadPoolExecutor(1) as thread:  # which ends, and the processes do not
            first = thread.submit(ranks, who, "a").result()
        again = ranks(who, "b", more=1)
        assert [value[1:] for value in first] == [((0,), 2, "a", 0), ((1,), 2, "a", 0)]
        assert [value[1:] for value in again] == [((0,), 2, "b", 1), ((1,), 2, "b", 1)]
        assert [value[0] for value in first] == [value[0] for value in again]
        assert ranks(summed, 10) == [[21.0] * 3] * 2
        assert ranks(lambda: sys.modules.setdefault("left here", 1)) == [1, 1]
        assert ranks(lambda: "left here" in sys.modules) == [True, True]
    assert_ended([pid for pid, *_ in first])


def test_after_a_failure_the_next_call_starts_new_processes() -> None:
    def fail(which):
        if started().local_ranks[0] == which:
            raise ValueError("the cause")
        time.sleep(0.3 * (which < 2))
        return os.getpid()

    with Ranks(2, backend="numpy", timeout=60) as ranks:
        before = ranks(fail, 2)
        for which in (0, 1):
            with pytest.raises(ProcessFailed, match=f"rank {which}(?s:.*)the cause"):
                ranks(fail, which)
        with pytest.raises(ProcessFailed, match="exit code 0 before .* from rank 1"):
            ranks(lambda: os._exit(0) if started().local_ranks[0] else None)
        assert not set(before) & set(ranks(fail, 2))
