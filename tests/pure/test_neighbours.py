"""What other programs use counts; what this one and its children use does not."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from d2lmulti_book import neighbours


class Machine:
    """Clocks that a test sets: all of the machine, this process, a child."""

    def __init__(self):
        self.total = self.mine = self.child = self.ended = self.now = 0.0

    def cpu_times(self):
        return Times(user=self.total, idle=100.0)

    def Process(self):
        child = SimpleNamespace(cpu_times=lambda: process_times(self.child, self.ended))
        return SimpleNamespace(
            cpu_times=lambda: process_times(self.mine, 0.0),
            children=lambda recursive: [child],
        )


class Times(SimpleNamespace):
    def __iter__(self):
        return iter((self.user, self.idle))


def process_times(user, ended):
    return SimpleNamespace(
        user=user, system=0.0, children_user=ended, children_system=0.0
    )


@pytest.mark.parametrize(
    ("mine", "child", "ended", "cores"),
    [(0, 0, 0, 1.5), (2, 0, 0, 0.5), (1, 1, 0, 0.5), (1, 1, 1, 0.0), (9, 9, 9, 0.0)],
)
def test_only_other_programs_count(monkeypatch, mine, child, ended, cores):
    machine = Machine()
    monkeypatch.setitem(__import__("sys").modules, "psutil", machine)
    monkeypatch.setattr("time.perf_counter", lambda: machine.now)
    with neighbours.Neighbours() as others:
        machine.total, machine.now = 3.0, 2.0
        machine.mine, machine.child, machine.ended = mine, child, ended
    assert others.cores == cores


def test_a_quiet_block_of_this_process_is_measured_as_such():
    with neighbours.Neighbours() as others:
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            pass
    assert 0 <= others.cores <= (os.cpu_count() or 1) + 0.1  # clocks tick at 10 ms
