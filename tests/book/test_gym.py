"""The gym: faults are graded wrong, repairs right, and the accuracy hides them."""

from __future__ import annotations

import json
import re
import warnings
from functools import cache

import numpy as np
import pytest
from book.notebooks import ROOT

from d2lmulti.cli import main
from d2lmulti_book.gym import command, grading
from d2lmulti_book.gym.faults import FAULTS, NO_EDIT, Edit, Fault, find
from d2lmulti_book.gym.grading import Outcome, compare, judge, run
from d2lmulti_book.gym.runner import run_cases

MEASURED = json.loads((ROOT / "chapters" / "measured" / "gym.json").read_text())
RING = find("ring")


def each_version():
    """Name every program with its backend; the ring would stop the tests."""
    for fault in FAULTS:
        for backend in fault.backends():
            if fault is not RING:
                mark = getattr(pytest.mark, backend)
                yield pytest.param(
                    fault, backend, id=f"{fault.name}-{backend}", marks=mark
                )


@cache
def trained(fault: Fault, backend: str, edit: Edit, case: str) -> dict[str, np.ndarray]:
    """Run a version of a program here: a process of its own would take longer."""
    names = {"__name__": fault.name}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(fault.program(backend, edit), names)
        return run_cases(names["train"], (case,))


@pytest.mark.parametrize(("fault", "backend"), each_version())
def test_grades(fault: Fault, backend: str, load) -> None:
    """The reference is right where each replica has the weights of one device."""
    load(backend)
    case = "0:4"
    right, faulty, wrong = (
        trained(fault, backend, edit, case)
        for edit in (fault.fix, NO_EDIT, fault.wrong)
    )
    assert judge(Outcome("ran", right), right).verdict == "right"
    assert judge(Outcome("ran", faulty), right).verdict == "wrong"
    assert judge(Outcome("ran", wrong), right).verdict == "wrong"
    if backend != fault.backends()[0]:  # NumPy's version is the reference
        expected = trained(fault, fault.backends()[0], fault.fix, case)
        assert compare(right, expected) == ()
    if fault.trains and fault.name != "warm_up":  # whose batch grows with the devices
        alone = trained(fault, backend, fault.fix, "0:1")
        for place, value in right.items():
            if "/weights/" in place:
                same_tensor = f"0/weights/0/{place.rpartition('/')[2]}"
                np.testing.assert_allclose(value, alone[same_tensor], rtol=0, atol=1e-9)


CLIPS = """            for model in replicas:
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            average_gradients(replicas)
"""
REPAIRS = [
    ("clipped", "torch", (CLIPS, "            average_gradients(replicas)\n"), "wrong"),
    ("uneven", "numpy", ("1 / workers", "1 / (len(batch) / len(shard))"), "right"),
    ("uneven", "numpy", ("1 / workers", "round(len(shard) / len(batch), 2)"), "wrong"),
    ("zero_one", "numpy", ("rank == 0", "rank < len(shards)"), "right"),
    ("zero_one", "numpy", ("rank == 0", "rank < 2"), "wrong"),
    ("stopwatch", "numpy", ("(host.now -", "(max(host.free_at) -"), "right"),
    ("stopwatch", "numpy", ("/ STEPS\n", "/ STEPS * gpus\n"), "wrong"),
]


@pytest.mark.parametrize(("name", "backend", "edit", "verdict"), REPAIRS)
def test_other_repairs(name: str, backend: str, edit: Edit, verdict: str, load) -> None:
    load(backend)
    fault = find(name)
    assert edit[0] in fault.program(backend)
    right, repaired = (trained(fault, backend, e, "0:4") for e in (fault.fix, edit))
    assert judge(Outcome("ran", repaired), right).verdict == verdict


def test_the_weights_of_every_replica_are_compared() -> None:
    fault = find("uneven")
    right = trained(fault, "numpy", fault.fix, "0:4")
    for place in (place for place in right if "/weights/" in place):
        moved = right | {place: right[place] * (1 + 1e-6)}
        assert judge(Outcome("ran", moved), right).verdict == "wrong", place


def test_the_learning_rate_is_scaled_in_each_epoch() -> None:
    names = {"__name__": "warm_up"}
    fault = find("warm_up")
    exec(fault.program("torch", fault.fix), names)
    rate = names["learning_rate"]
    epochs = range(names["EPOCHS"])
    assert [rate(e, 4) for e in epochs] == [4 * rate(e, 1) for e in epochs]


def test_each_edit_stands_once_in_each_version() -> None:
    for fault in FAULTS:
        for backend in fault.backends():
            text = fault.program(backend)
            assert [text.count(old) for old, _ in (fault.fix, fault.wrong)] == [1, 1]


def test_the_page_names_the_chapter_of_each() -> None:
    page = (ROOT / "chapters" / "gym.ipynb").read_text(encoding="utf-8")
    rows = re.findall(r"\| ([\d, ]+) \| \{doc\}`(\w+)` \|", page)
    told = {int(n): chapter for numbers, chapter in rows for n in numbers.split(", ")}
    assert told == {fault.number: fault.chapter for fault in FAULTS}


def test_they_go_from_easy_to_hard_and_name_a_chapter() -> None:
    levels = [("easy", "medium", "hard").index(fault.level) for fault in FAULTS]
    assert levels == sorted(levels) and len(FAULTS) >= 15
    for fault in FAULTS:
        assert (ROOT / "chapters" / f"{fault.chapter}.ipynb").exists()


@pytest.mark.parametrize("name", ["first_split", "uneven", "textbook", "zero_one"])
def test_the_table_is_that_of_the_programs(name: str) -> None:
    fault = find(name)
    for edit, column in ((fault.fix, "correct"), (NO_EDIT, "faulty")):
        found = trained(fault, "numpy", edit, "3")["0/accuracy"]
        assert found == pytest.approx(MEASURED[name][column][3], abs=0.005)


@pytest.mark.parametrize("name", ["first_split", "uneven", "textbook", "zero_one"])
def test_the_table_has_how_far_one_worker_is(name: str) -> None:
    fault = find(name)
    stored = MEASURED[name]["one_worker"]
    for edit, expected in zip((fault.fix, NO_EDIT), stored, strict=True):
        many, one = (trained(fault, "numpy", edit, case) for case in ("0", "0:1"))
        off = max(
            np.abs(value - alone).max() / np.abs(alone).max()
            for place, value in many.items()
            if "/weights/" in place
            for alone in [one[f"0/weights/0/{place.rpartition('/')[2]}"]]
        )
        assert off == pytest.approx(expected, rel=0.05, abs=1e-14)


def test_a_hang_shows_the_stack_of_each_rank() -> None:
    expected = grading.correct(RING)
    for edit in (NO_EDIT, RING.wrong):
        found = judge(run(RING.program("numpy", edit), 2), expected)
        assert found.verdict == "hung"
        text = "\n".join(found.lines)
        assert all(f"rank {rank} is in" in text for rank in range(4))
        assert "in run_rank" in text
    # Receiving first and then sending what was received is no repair either.
    old, new = RING.fix
    late = new.replace("to_next.send(weights[rank])", "to_next.send(received)")
    found = judge(run(RING.program("numpy", (old, late)), RING.limit), expected)
    assert found.verdict == "wrong"


@pytest.fixture
def gym(tmp_path, monkeypatch, capsys):
    """Call the command in an empty folder; return its exit code and what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("D2LMULTI_GYM", str(tmp_path / "user" / "score.json"))
    monkeypatch.setenv("D2LMULTI_BACKEND", "numpy")

    def call(*words: str) -> tuple[int, str]:
        code = main(["gym", *words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


def test_a_round(gym, tmp_path) -> None:
    fault = find("uneven")
    assert "begin with: python -m d2lmulti gym start 1" in gym()[1]
    code, text = gym("start", "3")
    assert code == 0 and "accuracy" in text and "weights: off by" in text
    mine = tmp_path / "gym" / "03_uneven.py"
    assert mine.read_text() == fault.program("numpy")
    assert gym("start", "3")[0] == 2  # the learner's work is not overwritten
    assert gym("grade", "3")[0] == 1
    code, text = gym("hint", "3")
    assert "hint 1 of 3" in text and "hint 2" not in text
    mine.write_text(fault.program("numpy", fault.wrong))
    code, text = gym("grade", str(mine))
    assert code == 1 and "replica 0: off by" in text
    mine.write_text(fault.program("numpy", fault.fix))
    code, text = gym("grade", "3")
    assert code == 0 and fault.fault in text
    code, text = gym("list")
    assert "begin with" not in text and "3 of 4" in text and "points: 3 of 68" in text
    score = json.loads(command.score_file().read_text())
    assert score == {"uneven": {"attempts": 3, "hints": 1, "solved": True}}
    assert gym("solution", "3")[0] == 0 and "3 of 4" in gym()[1]  # points are kept


def test_a_class(gym, tmp_path) -> None:
    fault = find("zero_one")
    for student, edit in (("ann", fault.fix), ("bob", fault.wrong)):
        folder = tmp_path / "class" / student
        folder.mkdir(parents=True)
        (folder / fault.file_name).write_text(fault.program("numpy", edit))
    (folder / "notes.py").write_text("")
    code, text = gym("grade", "class", "--json")
    rows = {row["file"].split("/")[-2]: row["verdict"] for row in json.loads(text)}
    assert code == 1 and rows == {"ann": "right", "bob": "wrong"}
    assert gym("grade", "class/ann", "--json")[0] == 0
    assert not command.score_file().exists()  # the teacher's own score


@pytest.mark.parametrize(
    ("returned", "report"),
    [
        ("1 / 0", 'crashed\n  File "program.py", line 2, in train\n'),
        ("{'seconds': 'soon'}", "crashed\n"),
        ("{}", "wrong\n"),
        ("{'seconds': [1.0]}", "wrong\n"),
    ],
)
def test_what_is_no_repair_has_a_report(gym, tmp_path, returned, report) -> None:
    text = f"def train(seed, workers=4):\n    return {returned}\n"
    (tmp_path / "10_stopwatch.py").write_text(text)
    code, printed = gym("grade", "10_stopwatch.py")
    assert code == 1 and printed.startswith(f"10_stopwatch.py: {report}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\n", "expected a function `train(seed, workers)`, found none"),
        ("import sys\nsys.exit(0)\n", "the program called sys.exit(0)"),
        ("raise SystemExit\n", "the program called sys.exit(None)"),
        ("import os\nos._exit(0)\n", "with exit code 0"),
        ("\0", "null bytes"),
        ("def train(seed, workers=2):\n    raise KeyboardInterrupt\n", "Interrupt"),
        ("from d2lmulti_book.gym.faults import find\n", "may not use d2lmulti_book"),
        ("import sys\nwhile True:\n    sys.stderr.write('x' * 10**6)\n", "xxx"),
        (
            "import numpy as np\ndef train(seed, workers=2):\n"
            "    return np.zeros((20_000, 20_000))\n",
            "File too large",
        ),
    ],
)
def test_a_crash_is_explained_by_the_program_alone(text: str, line: str) -> None:
    found = judge(run(text, 20), {})
    assert found.verdict == "crashed" and line in found.lines[-1]
    assert "runner.py" not in "".join(found.lines)
    assert all(len(words) <= 200 for words in found.lines)


def test_what_a_program_prints_or_leaves_behind_does_not_delay_it() -> None:
    text = (
        "import subprocess, threading, time\n"
        "subprocess.Popen(['sleep', '300'])\n"
        "threading.Thread(target=lambda: time.sleep(300)).start()\n"
        "for _ in range(1000):\n    print('x' * 10**5)\n"
        "def train(seed, workers=2):\n    return {'seconds': [1.0]}\n"
    )
    outcome = run(text, 20)
    assert outcome.verdict == "ran" and outcome.results["0/seconds/0"] == 1


def test_files_that_are_none(gym, tmp_path) -> None:
    folder = tmp_path / "class" / "ann"
    folder.mkdir(parents=True)
    (folder / "10_stopwatch.py").write_text("x = 1\n")
    (tmp_path / "class" / "bob" / "10_stopwatch.py").mkdir(parents=True)
    code, text = gym("grade", "class", "--json")
    assert code == 1 and len(json.loads(text)) == 1
    code, text = gym("grade", "my_file.py")
    assert code == 2 and "expected a file my_file.py" in text


def test_options(gym) -> None:
    assert gym("solution", "11", "--backend", "torch")[1].count("\n+") == 2
    assert "tensors[i][:]" in gym("solution", "textbook")[1]
    for _ in range(4):
        code, text = gym("hint", "11")
    assert code == 0 and text.count("hint") == 3
    for wrong in (
        ("hint", "99"),
        ("solution", "2", "--backend", "mxnet"),
        ("start",),
        ("grade", "4"),
        ("grade", "."),
        ("mend", "4"),
    ):
        assert gym(*wrong)[0] == 2, wrong
