"""Whatever happens to a rank: it is named within seconds, and nothing is left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes.failing import ENGINES, FAULTS, alive, cases

from d2lmulti.backends.protocol import Backend
from d2lmulti.processes.guard import Guard
from d2lmulti.processes.private_folder import private_folder, remove_leftovers

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc"),
]
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
# Whoever watches is the same for all engines, so in CI not each fault happens on each.
SOME = {
    "shared_memory": ("killed", "stopped", "exit 0", "full disk", "launcher killed"),
    "torch": ("killed", "exit 0", "exception"),
    "paddle": ("exit 0",),
    "horovod": (),
    "kvstore": ("killed", "stopped", "exit 0"),
}
PAIRS = [
    pytest.param(engine, fault, marks=getattr(pytest.mark, ENGINES[engine]))
    for engine in ENGINES
    for fault in (cases(engine) if LONG else SOME[engine])
]


@pytest.mark.parametrize(("engine", "fault"), PAIRS)
def test_a_fault_is_named_in_time(
    engine: str,
    fault: str,
    load: Callable[[str], Backend],
    need: Callable[[str], None],
    tmp_path: Path,
) -> None:
    load(ENGINES[engine])
    if engine == "horovod":
        need(engine)
    outcome = cases(engine)[fault](tmp_path)
    assert not outcome.wrong


def test_every_fault_happens_somewhere() -> None:
    happened = {fault for faults in SOME.values() for fault in faults}
    assert happened == {*FAULTS, "full disk", "launcher killed"}


def test_a_guard_that_is_dismissed_kills_nobody(tmp_path: Path) -> None:
    guard = Guard(tmp_path)
    guard.watch(os.getpgid(0))  # ours: it would be the end of this test
    guard.dismiss()
    assert tmp_path.exists()


def test_what_dead_launchers_left_is_removed(tmp_path: Path) -> None:
    old = time.time() - 100
    with private_folder() as held:
        dead, fresh = tmp_path / "d2lmulti-dead", tmp_path / "d2lmulti-fresh"
        other, used = tmp_path / "other", tmp_path / held.name
        used.symlink_to(held)
        for folder in (dead, fresh, other):
            folder.mkdir()
            (folder / "function").touch()
        for folder in (dead, other, held):
            os.utime(folder, (old, old))
        remove_leftovers(tmp_path)
        assert not dead.exists()
        assert fresh.exists() and other.exists() and held.exists()
        used.unlink()
        remove_leftovers(held.parent)
        assert held.exists()  # it is old too, but its launcher lives
    assert not held.exists()
    assert alive(os.getpid())
