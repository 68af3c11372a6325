"""The status table is read while others write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2lmulti.processes.engine import RUNNING, StatusTable


def tables(path: Path) -> tuple[StatusTable, StatusTable]:
    StatusTable.create(path, 2)
    return StatusTable(path, 2, rank=0), StatusTable(path, 2, rank=1)


def test_a_row_tells_what_its_rank_does(tmp_path: Path) -> None:
    one, other = tables(tmp_path / "table")
    one.set_state(RUNNING)
    one.begin("a call with ü")
    one.wait_for(1)
    row = other.read(0)
    assert (row.number, row.call, row.waits_for) == (1, "a call with ü", (1,))
    assert not row.ended and not other.read(1).number
    assert "rank 0: at call 1, a call with ü; waits for rank 1" in other.in_words()


def test_calls_of_a_group_count_separately(tmp_path: Path) -> None:
    one, other = tables(tmp_path / "table")
    for group in ("", "along data", ""):
        one.begin("a long call " * 99, group)
    assert (other.read(0).number, other.read(0).group) == (2, "")
    one.begin("a call", "along data")
    assert (other.read(0).number, other.read(0).group) == (2, "along data")
    assert other.read(0).call == "a call"


def test_a_call_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    one, other = tables(tmp_path / "table")
    one.begin("the first call")

    class Killed(dict):
        def __getitem__(self, group: str) -> int:
            row = one._rows[0]
            row[32 + 0 : 32 + 7] = b"garbage"  # where the second call would stand
            raise SystemExit

    one._counts = Killed()  # type: ignore[assignment]
    with pytest.raises(SystemExit):
        one.begin("the second call")
    assert (other.read(0).number, other.read(0).call) == (1, "the first call")
