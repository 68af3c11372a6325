"""The status table is read while others write it, and after a writer was killed."""

from __future__ import annotations

import struct
from pathlib import Path

from d2lmulti.processes import status_table as board
from d2lmulti.processes.status_table import RUNNING, StatusTable


def boards(path: Path) -> tuple[StatusTable, StatusTable]:
    StatusTable.create(path, 2)
    return StatusTable(path, 2, rank=0), StatusTable(path, 2, rank=1)


def test_a_row_tells_what_its_rank_does(tmp_path: Path) -> None:
    mine, other = boards(tmp_path / "board")
    mine.set_state(RUNNING)
    mine.begin("a call with ü")
    mine.wait_for(1)
    row = other.read(0)
    assert (row.number, row.call, row.waits_for) == (1, "a call with ü", (1,))
    assert not row.ended and not other.read(1).number
    assert "rank 0: at call 1, a call with ü; waits for rank 1" in other.in_words()


def test_the_row_of_a_writer_that_was_killed_can_be_read(tmp_path, monkeypatch) -> None:
    mine, other = boards(tmp_path / "board")
    mine.set_state(RUNNING)
    mine.begin("the last call")
    struct.pack_into("<q", mine._memory, 0, 7)  # not yet that of its row
    monkeypatch.setattr(board, "_PATIENCE", 0.05)
    assert other.read(0).call == "the last call"


def test_half_a_row_is_not_believed(tmp_path, monkeypatch) -> None:
    mine, other = boards(tmp_path / "board")
    mine.begin("the first call")
    before = mine._memory[: board._ROW]
    mine.begin("the second call")
    after = mine._memory[: board._ROW]
    looks = []

    def look(_: object = None) -> None:  # meanwhile its writer ends
        looks.append(other._memory[:16])
        mine._memory[: board._ROW] = after

    half = before[:40] + after[40:]  # the numbers of one, the words of the other
    mine._memory[: board._ROW] = half
    monkeypatch.setattr(board.time, "sleep", look)
    row = other.read(0)
    assert looks and (row.number, row.call) == (2, "the second call")
