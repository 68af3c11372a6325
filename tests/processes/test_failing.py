"""Whatever happens to a rank: it is named within seconds, and nothing is left."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes.failing import ENGINES, cases

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc"),
]
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
# What watches the ranks is the same for all engines, so in CI not each fault happens on
# each of them.
SOME = {
    "shared_memory": ("killed", "exit 0", "full disk"),
    "torch": ("killed", "exit 0", "exception"),
    "paddle": ("exit 0",),
    "horovod": (),
    "kvstore": ("killed", "exception"),
}
PAIRS = [
    pytest.param(engine, fault, marks=getattr(pytest.mark, ENGINES[engine]))
    for engine in ENGINES
    for fault in (cases(engine) if LONG else SOME[engine])
]


@pytest.mark.parametrize(("engine", "fault"), PAIRS)
def test_a_fault_is_named_in_time(
    engine: str, fault: str, load: Callable, need: Callable, tmp_path: Path
) -> None:
    load(ENGINES[engine])
    if engine == "horovod":
        need(engine)
    assert not cases(engine)[fault](tmp_path).wrong
