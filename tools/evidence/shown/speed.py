"""The tables of times: ratios with their quartiles, and what can be told apart."""

from __future__ import annotations

from benchmarks.engines import KILOBYTES

from ..markdown import between, listed, table, together
from ..ratios import ALONE, TWO
from . import Row, Shown

OWN = {"torch": "DDP", "paddle": "`paddle.DataParallel`"}
TO_ITS_OWN = ", to its own"


def ratio(r: Row) -> str:
    """Write a ratio and its quartiles."""
    middle = f"{r['ratio']:{'.2f' if r['ratio'] >= 0.1 else '.2g'}}"
    if r["ratio"] == 1 or "ratio_quartiles" not in r:
        return middle
    digits = ".2f" if r["ratio"] >= 0.1 else ".2g"
    return together(middle, f"({between(r['ratio_quartiles'], digits)})")


def milliseconds(r: Row) -> str:
    """Write the seconds of one call as milliseconds, with their quartiles."""
    middle = _milliseconds(r["seconds"])
    if "seconds_quartiles" not in r:
        return middle
    low, high = map(_milliseconds, r["seconds_quartiles"])
    return together(middle, f"({low}\u2013{high})")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:{'.0f' if seconds >= 1 else '.3g'}}"


def verdict(r: Row) -> str:
    """Say which of the two is faster, if the quartiles tell."""
    if "ratio_quartiles" not in r:
        return "unknown"
    low, high = r["ratio_quartiles"]
    return "faster" if high < 1 else "slower" if low > 1 else "not distinguishable"


def repetitions(rows: list[Row]) -> str:
    """Write how often each candidate was timed."""
    counts = sorted({r["repeats"] for r in rows if "repeats" in r})
    if not counts:
        return "The number of repetitions was not recorded."
    return f"Each candidate was timed {listed([str(n) for n in counts])} times" + (
        "." if len(counts) == 1 else ", the short ones most often."
    )


def summed_up(rows: list[Row]) -> str:
    """Return how many comparisons with the frameworks came out in which way."""
    if not rows:
        return ""
    kinds = [verdict(r) for r in rows]
    if "unknown" in kinds:
        ratios = [r["ratio"] for r in rows]
        return (
            f"The medians of {len(rows)} comparisons lie between {min(ratios):.2f} and "
            f"{max(ratios):.2f} times the framework's time; their spread was not "
            "recorded, so no difference is claimed."
        )
    return (
        f"Of {len(rows)} comparisons with the framework's own wrapper, the library's "
        f"training step was faster in {kinds.count('faster')}, slower in "
        f"{kinds.count('slower')}, and not distinguishable in "
        f"{kinds.count('not distinguishable')}, where the quartiles of the ratio "
        "include 1."
    )


def found_of_ratios(rows: list[Row]) -> str:
    """Return how our steps compare with the frameworks', and the price of a call."""
    text = [summed_up([r for r in rows if TO_ITS_OWN in r["candidate"]])]
    short = [r for r in rows if r["candidate"] == "one element on 2, ours"]
    if short:
        each = [f"{r['seconds'] * 1e6:.1f} µs ({r['backend']})" for r in short]
        text.append(
            "An all-reduce of one element on two simulated devices took "
            f"{listed(each)}; this is the fixed price of a call."
        )
    half = [r for r in rows if "half the batch" in r["candidate"]]
    if half:
        ratios = [r["ratio"] for r in half]
        text.append(
            "One worker with half the batch took "
            f"{min(ratios):.2f} to {max(ratios):.2f} times as long as with the whole "
            "batch. Where this ratio is below 0.5, the smaller batch is faster per "
            "example, and two workers can be more than twice as fast as one."
        )
    return " ".join(filter(None, text))


def show_ratios(rows: list[Row]) -> str:
    """Lay out steps of training, all-reduces between processes, and in one process."""
    parts = []
    if steps := _steps(rows):
        head = ["", "backend", "ms", "to one worker", "to its own"]
        parts += [
            repetitions([r for r in rows if r["part"] != ALONE]),
            "A training step of two workers, each on a core of its own: milliseconds, "
            "the ratio to one worker with the whole batch (0.5 is twice as fast), and "
            "the ratio to the framework's own wrapper. Two workers that never "
            "communicate give the upper bound.",
            table(head, steps, words=2),
            "An all-reduce between two processes: the ratio to the first line of its "
            "block. That line is the framework's own (gloo in PyTorch and Paddle, "
            "shared memory for MXNet).",
            table(["", "backend", *(f"{kb} KB" for kb in KILOBYTES)], _sums(rows), 2),
        ]
    alone = [r for r in rows if r["part"] == ALONE]
    parts += [
        repetitions(alone),
        "An all-reduce among four simulated devices of one process, 16 MiB each: the "
        "ratio to the same additions and copies written in NumPy; and two that are so "
        "short that the calls count.",
        table(
            ["", "backend", "ms", "ratio"],
            [[r["candidate"], r["backend"], milliseconds(r), ratio(r)] for r in alone],
            words=2,
        ),
    ]
    return "\n\n".join(parts)


def _steps(rows: list[Row]) -> list[list[str]]:
    own = {}
    for r in rows:
        name, marker, _ = r["candidate"].partition(TO_ITS_OWN)
        if marker:
            own[r["part"], r["backend"], name] = r
    found = []
    for r in rows:
        name = r["candidate"]
        if r["part"] == ALONE or "all-reduce" in name or TO_ITS_OWN in name:
            continue
        peer = OWN.get(r["backend"], "") if r["part"] == TWO else "Horovod"
        compared = own.get((r["part"], r["backend"], name))
        beside = "" if compared is None else f"{ratio(compared)} {verdict(compared)}"
        if verdict(compared or r) == "unknown":
            beside = beside.removesuffix(" unknown")
        label = name.replace("its own", peer)
        found.append([label, r["backend"], milliseconds(r), ratio(r), beside])
    return found


def _sums(rows: list[Row]) -> list[list[str]]:
    lines: dict[tuple[str, str, str], list[str]] = {}
    for r in rows:
        if r["part"] != ALONE and r["candidate"].startswith("all-reduce "):
            _, _, name = r["candidate"].partition(", ")
            lines.setdefault((r["part"], name, r["backend"]), []).append(ratio(r))
    return [[name, backend, *line] for (_, name, backend), line in lines.items()]


PEERS = ["fully_shard", "fully_shard, recomputes"]


def found_of_sharded(rows: list[Row]) -> str:
    """Return how ZeRO compares with data parallelism and with `fully_shard`."""
    cells = {(r["backend"], r["candidate"]): r for r in rows}
    text = []
    for stage in (1, 2, 3):
        ratios = [
            r["ratio"] for (_, name), r in cells.items() if name == f"ZeRO {stage}"
        ]
        text.append(f"{min(ratios):.2f} to {max(ratios):.2f} times under ZeRO {stage}")
    peers = [cells["torch", f"ZeRO 3, to {peer}"] for peer in PEERS
             if ("torch", f"ZeRO 3, to {peer}") in cells]  # fmt: skip
    words = ["`fully_shard`", "`fully_shard` with activation checkpointing"]
    beside = [
        f"{ratio(r)} times as long as {w}" for r, w in zip(peers, words, strict=True)
    ]
    return (
        f"Compared with data parallelism, a step took {listed(text)} (the ranges are "
        f"over the backends). On PyTorch, a step under ZeRO 3 took {listed(beside)}."
    )


def show_sharded(rows: list[Row]) -> str:
    """Lay out a line for each candidate, with its ratios to every peer."""
    cells = {(r["backend"], r["candidate"]): r for r in rows}
    lines = []
    for r in rows:
        backend, name = r["backend"], r["candidate"]
        if ", to " in name:  # shown in the line of what was timed
            continue
        beside = [cells.get((backend, f"{name}, to {peer}")) for peer in PEERS]
        lines.append([
            name.replace("fully_shard", "`fully_shard`"), backend, milliseconds(r),
            ratio(r), *("" if other is None else ratio(other) for other in beside),
        ])  # fmt: skip
    head = ["", "backend", "ms", "to data parallelism", "to `fully_shard`",
            "the same, recomputing"]  # fmt: skip
    return f"{repetitions(rows)}\n\n{table(head, lines, words=2)}"


HOW = (
    "All candidates took turns in one run, so that a change of the machine's speed "
    "affects all of them alike. A ratio is formed in each repetition; a cell gives "
    "the median and, in parentheses, the quartiles. Two candidates whose quartiles "
    "overlap are not distinguishable."
)
RATIOS = Shown(
    found_of_ratios,
    f"{HOW} `python -m d2lmulti bench engines` and `bench allreduce` print the same "
    "numbers.",
    show_ratios,
)
SHARDED = Shown(
    found_of_sharded,
    "Two processes, each on a core of its own, trained a perceptron with 13 MB of "
    f"weights on batches of 512 examples. {HOW} Data parallelism all-reduces its "
    "gradients in buckets. Under ZeRO 3 the library computes a layer's forward pass "
    "twice, as `fully_shard` does with activation checkpointing (the last column). "
    "`python -m d2lmulti bench sharded` prints the same numbers.",
    show_sharded,
)
