"""The tables of failures: ranks of the library, and the frameworks' scripts."""

from __future__ import annotations

from ..markdown import count, listed, table
from ..strategies import ENGINES
from . import Row, Shown

LAUNCHER = "launcher killed"


def found_of_faults(rows: list[Row]) -> str:
    """Return how often ranks failed, and after how many seconds that was reported."""
    faults = [r for r in rows if "fault" in r]
    bad = sum(len(r["wrong"]) for r in faults)
    at_once = [r for r in faults if r["fault"] != LAUNCHER]
    again = [r for r in rows if "restarts" in r]
    text = (
        f"In {count(sum(r['times'] for r in faults))} launches of two ranks, a rank or "
        "the launcher was killed or otherwise disturbed on purpose. "
        f"{f'All but {bad} times' if bad else 'Each time'}, the error named the rank, "
        "all processes ended, and no file or shared memory was left."
    )
    if at_once:
        text += (
            " A rank that ended was named within "
            f"{max(r['seconds'] for r in at_once):.1f} s."
        )
    if again:
        same = sum(r["same_bits"] for r in again)
        text += (
            f" Runs that were killed {listed([str(r['restarts']) for r in again])} "
            "times and resumed from their checkpoints ended with the bits of an "
            f"undisturbed run in {same} of {len(again)} cases."
        )
    return text


def show_faults(rows: list[Row]) -> str:
    """Lay out the faults, then the runs that resumed."""
    faults = [r for r in rows if "fault" in r]
    engines = list(dict.fromkeys(r["engine"] for r in faults))
    cells = {(r["engine"], r["fault"]): r for r in faults}

    def cell(r: Row | None) -> str:
        return f"{r['times']}, {r['seconds']:.1f} s" if r else "not run"

    body = [
        [fault, *(cell(cells.get((engine, fault))) for engine in engines)]
        for fault in dict.fromkeys(r["fault"] for r in faults)
    ]
    again = [
        [ENGINES[r["engine"]][0], r["backend"], r["restarts"],
         "yes" if r["same_bits"] else "no",
         f"{r['seconds'] / (r['restarts'] + 1):.1f}"]
        for r in rows if "restarts" in r
    ]  # fmt: skip
    parts = [
        "The number of repetitions, and the longest time from the fault until the "
        "launcher had named the rank and all processes had ended:",
        table(["", *(ENGINES[engine][0] for engine in engines)], body),
    ]
    if again:
        parts += [
            "Runs of two ranks that were killed at random moments and restarted from "
            "their checkpoint:",
            table(["", "backend", "kills", "same bits", "seconds per attempt"], again,
                  words=2),
        ]  # fmt: skip
    return "\n\n".join(parts)


def found_of_scripts(rows: list[Row]) -> str:
    """Return that all resumed, and how often the other processes did not end."""
    kills = sum(r["kills"] for r in rows)
    text = (
        f"After each of {kills} kills, the scripts resumed from their checkpoint, and "
        "in the end had the weights of an undisturbed run, bit for bit."
    )
    stuck = [r for r in rows if r["ended"] < r["kills"]]
    if not stuck:
        return text
    each = [f"`{r['script']}.py` {r['kills'] - r['ended']} of {r['kills']}"
            for r in stuck]  # fmt: skip
    left = sum(r["kills"] - r["ended"] for r in stuck)
    text += (
        f" The frameworks did not always clean up: ten seconds after {left} of the "
        f"{kills} kills, other processes of the job were still running "
        f"({', '.join(each)}). On a GPU, such an orphan keeps its memory allocated, so "
        "look for orphans and end them before you restart a job."
    )
    known = [r for r in stuck if "ended_without_launcher" in r and r["launchers"]]
    if known:
        launchers = sum(r["launchers"] for r in known)
        of = launchers - sum(r["ended_without_launcher"] for r in known)
        text += (
            f" In the scripts that have a launcher, this happened after {of} of "
            f"{launchers} kills of a launcher."
        )
    return text


def show_scripts(rows: list[Row]) -> str:
    """Lay out a line for each script."""
    head = ["", "machines", "launchers killed", "workers killed", "epochs in all",
            "the others ended within 10 s", "at the latest after"]  # fmt: skip
    body = [
        [f"`{r['script']}.py`", r["machines"], r["launchers"],
         r["kills"] - r["launchers"], r["epochs"], f"{r['ended']} of {r['kills']}",
         "" if r["seconds"] is None else f"{r['seconds']:.1f} s"]
        for r in rows
    ]  # fmt: skip
    return table(head, body)


FAULTS = Shown(
    found_of_faults,
    "In the middle of a run, one of two ranks was killed, exited, "
    "raised an exception, or met a full disk, or the launcher was killed.",
    show_faults,
    "tests/processes/test_failing.py tests/processes/test_faults.py",
)
SCRIPTS = Shown(
    found_of_scripts,
    "Each script of {doc}`scripts` ran in float64 on as many machines as the table "
    "says; two machines are two network namespaces of one computer. A launcher or a "
    "worker, chosen at random, was killed with `SIGKILL` at a random moment. The "
    "remaining processes had ten seconds to end and were then killed; the run was "
    "restarted and resumed from its checkpoint. The final weights were also compared "
    "with those of the same script on one device and of the script for one device; "
    "they had to agree within 10⁻¹² of the largest weight of the tensor. The script "
    "for TensorFlow has no launcher.",
    show_scripts,
    "tests/processes/test_examples.py tests/processes/test_elastic.py",
)
