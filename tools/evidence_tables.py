"""Lay out each table of the evidence: first what is seen of it, then what is folded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import median
from typing import Any

Row = dict[str, Any]
Record = Mapping[str, Mapping[str, Any]]
ONE = "one process"
ENGINES = {
    ONE: "simulated devices in one process",
    "shared_memory": "processes over shared memory",
    "torch": "`torch.distributed`",
    "paddle": "`paddle.distributed`",
    "horovod": "Horovod",
    "kvstore": "MXNet's `dist_sync` kvstore",
}
FULL_NAMES = {
    "data": "data parallelism, by each all-reduce and in buckets",
    "tensor": "tensor parallelism",
    "pipeline": "pipeline parallelism, by each schedule",
    "sharded": "sharded training, ZeRO 1 to 3",
}
WRAPPERS = {
    ("engines", "torch"): "PyTorch's DDP",
    ("engines", "paddle"): "Paddle's DataParallel",
}
FRAMEWORKS = {"torch": "PyTorch", "paddle": "Paddle"}
NUMBERS = "none one two three four five six seven eight nine".split()
UNCLEAR = "not distinguishable"
ROUNDING = 1e-12  # differences up to here are no change of the weights
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(count: int) -> str:
    """Write a count within a sentence: below ten, as a word."""
    return NUMBERS[count] if count < len(NUMBERS) else f"{count:,}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """Lay out a table; the first columns are words, the others are numbers."""
    lines = [list(head), ["---"] * words + ["--:"] * (len(head) - words)]
    lines += [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def small(x: float | None) -> str:
    """Write a difference: 0, or two digits, with a power of ten if it is far from 1."""
    if not x:
        return "none" if x is None else "0"
    if 0.01 <= x < 100:
        return f"{x:.2g}"
    digits, _, power = f"{x:.1e}".partition("e")
    return f"{digits}·10{str(int(power)).translate(_RAISED)}"


def power(x: float) -> str:
    """Write the largest power of ten that is not above x."""
    return f"10{str(math.floor(math.log10(x))).translate(_RAISED)}"


def unique(rows: Iterable[Row], *keys: str) -> list[Any]:
    """Return the different values of a key, or of several, in their order."""
    found = dict.fromkeys(tuple(r[key] for key in keys) for r in rows)
    return [values[0] for values in found] if len(keys) == 1 else list(found)


def all_of(count: int, total: int) -> str:
    """Write how many of a total: the number, or "all 3"."""
    return f"all {total}" if count == total else str(count)


def group_by(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Return the rows of each value of the key, in the order of the first ones."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


# -- what the top of the page and the sections both say --------------------------------


def agreement(rows: Iterable[Row]) -> tuple[int, float]:
    """Return how many runs in float64 there were, and their largest difference."""
    double = [r for r in rows if r["ranks"] and r["dtype"] == "float64"]
    worst = max((r["difference"] for r in double), default=0.0)
    return sum(len(r["ranks"]) for r in double), worst


def largest_network(rows: Iterable[Row]) -> int:
    """Return how many weights the largest network had that was trained."""
    return max((r["weights"] for r in rows if r["ranks"]), default=0)


def noticed(rows: Sequence[Row]) -> str:
    """Write how many of the planted bugs a test noticed."""
    return all_of(sum(bool(r["tests"]) for r in rows), len(rows))


def changes(rows: Iterable[Row]) -> list[float]:
    """Return how far the bugs moved the weights that moved beyond rounding."""
    return [x for r in rows if (x := r["difference"] or 0) > ROUNDING]


def total(rows: Iterable[Row], key: str) -> int:
    """Return the sum of a key over the rows that have it."""
    return sum(r.get(key, 0) for r in rows)


def differing(rows: Iterable[Row]) -> int:
    """Return how many results between processes had not the bits of one process."""
    return sum(len(r.get("differ", ())) for r in rows)


def wrappers(rows: Iterable[Row]) -> list[Row]:
    """Return the comparisons of training steps with a framework's own wrapper.

    In the part "horovod", the peer is the library's own step over Horovod.
    """
    return [r for r in rows if ", to " in r["candidate"] and r["part"] != "horovod"]


def verdict(row: Row) -> str:
    """Tell whether the quartiles of a ratio exclude 1."""
    low, high = row["ratio_quartiles"]
    return "faster" if high < 1 else "slower" if low > 1 else UNCLEAR


def by_engine(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Return comparisons over the wrappers' own engine, and over shared memory."""
    same: list[Row] = []
    shared: list[Row] = []
    for r in wrappers(rows):
        (shared if "shared_memory" in r["candidate"] else same).append(r)
    return same, shared


def speed(rows: Iterable[Row]) -> str:
    """Write how training steps compare with those of the frameworks' wrappers.

    A step over shared memory does not send by the engine that the wrapper uses, so it
    is counted separately.
    """
    same, shared = by_engine(rows)
    words = []
    if same:
        words.append(
            f"In {number(len(same))} comparisons with the frameworks' own wrappers "
            "over the same engine (gloo), the library's training step took "
            f"{took(same)}"
        )
    if shared:
        words.append(
            f"In {number(len(shared))} comparisons with the same wrappers, the "
            "library's step over shared memory, which works on one machine only, took "
            f"{took(shared)}"
        )
    return " ".join(words)


def took(rows: Sequence[Row]) -> str:
    """Write how much longer some steps took, and how many were faster or slower."""
    count = Counter(map(verdict, rows))
    ratios = [r["ratio"] for r in rows]
    clear = [f"{said} in {number(n)}" for said, n in count.items() if said != UNCLEAR]
    said = [f"it was {' and '.join(clear)}"] * bool(clear)
    if count[UNCLEAR]:
        unclear = "all " * (not clear) + number(count[UNCLEAR])
        said.append(f"in {unclear}, the quartiles of the ratio include 1")
    return (
        f"{min(ratios):.2f} to {max(ratios):.2f} times as long (medians): "
        f"{'; '.join(said)}."
    )


def rings(rows: Sequence[Row]) -> list[Row]:
    """Return the comparisons of our ring with a framework's all-reduce, by gloo.

    That of shared memory is the library's, not a framework's, and is not a peer.
    """
    return [  # the framework's own is in the line before
        ring
        for native, ring in pairwise(rows)
        if native["ratio"] == 1
        and native["candidate"].endswith(", native")
        and "shared_memory" not in native["candidate"]
        and ring["candidate"] == native["candidate"].replace("native", "our ring")
    ]


def short_speed(rows: Sequence[Row], ringing: Sequence[Row]) -> str:
    """Write in one sentence how steps and rings over gloo compare, by their medians."""
    steps = [r["ratio"] for r in by_engine(rows)[0]]
    compared = sorted(rings(ringing), key=itemgetter("ratio"))
    low, high = (
        f"{r['ratio']:.2f} times ({of_ring(r)})" for r in (compared[0], compared[-1])
    )
    return (
        "With two processes over gloo, the library's training step took "
        f"{min(steps):.2f} to {max(steps):.2f} times as long as the frameworks' own "
        f"(medians of {len(steps)} comparisons), and its ring all-reduce {low} to "
        f"{high} as long as theirs ({len(compared)} comparisons, with a median of "
        f"{median(r['ratio'] for r in compared):.2f})."
    )


def of_ring(row: Row) -> str:
    """Return the size of an all-reduce and the framework it is compared with."""
    size, framework, _ = row["candidate"].removeprefix("all-reduce ").split(", ")
    return f"{size}, {FRAMEWORKS.get(framework, framework)}"


def ring_speed(rows: Sequence[Row]) -> str:
    """Write how our ring compares with the frameworks' own all-reduce, if it does."""
    own = [r["ratio"] for r in rings(rows)]
    if not own:
        return ""
    return (
        f"In {len(own)} comparisons between two processes over gloo, the library's "
        f"ring all-reduce took {min(own):.2f} to {max(own):.2f} times as long as the "
        f"framework's own, with a median of {median(own):.2f}."
    )


def written(middle: float, ends: Sequence[float] = ()) -> str:
    """Write a median with two digits or more, and its quartiles in parentheses."""
    words = [f"{x:.2f}" if x >= 0.1 else f"{x:.2g}" for x in (middle, *ends)]
    return f"{words[0]} ({words[1]}\u2013{words[2]})" if ends else words[0]


def ring_sizes(rows: Sequence[Row]) -> str:
    """Lay out how our ring compares with the frameworks' all-reduce, by size."""
    cells: dict[str, dict[str, str]] = {}
    for r in rings(rows):
        size, engine, _ = r["candidate"].removeprefix("all-reduce ").split(", ")
        size = f"{int(size.removesuffix(' KB')):,} KB"
        cells.setdefault(size, {})[engine] = written(r["ratio"], r["ratio_quartiles"])
    engines = list(dict.fromkeys(engine for row in cells.values() for engine in row))
    head = ["vector", *(ENGINES[engine] for engine in engines)]
    return table(head, ([size, *map(row.get, engines)] for size, row in cells.items()))


def listed(values: Sequence[int]) -> str:
    """Write numbers as a sentence does: 1, 2, and 1,003."""
    words = [f"{value:,}" for value in values]
    return f"{', '.join(words[:-1])}, and {words[-1]}"


# -- the sections: a sentence, an overview, and all rows -------------------------------


def weights(rows: list[Row]) -> Iterator[str]:
    """Show the differences from the weights of one device."""
    runs, worst = agreement(rows)
    yield (
        f"In {runs:,} runs in float64 of networks with at most "
        f"{largest_network(rows):,} weights, no weight on any device differed from one "
        f"device's by more than {small(worst)} of the largest weight of its tensor, "
        f"which is {worst / 2**-52:.0f} times the machine epsilon."
        f"\n\n{overview(rows)}"
    )

    def cell(row: Row | None) -> str:
        if row is None or not row["ranks"]:
            return "rejected" if row else "not run"
        single = ", float32" * (row["dtype"] == "float32")
        return f"{small(row['difference'])} ({len(row['ranks'])}{single})"

    cells = {(r["engine"], r["backend"], r["way"]): r for r in rows}
    own = [engine for engine in ENGINES if engine not in (ONE, "shared_memory")]
    for engines in ([ONE], ["shared_memory"], own):
        ours = [r for r in rows if r["engine"] in engines]
        columns = unique(ours, "engine", "backend")
        if columns:
            head = [f"{ENGINES[engine]}, {backend}" for engine, backend in columns]
            ways = unique(rows, "way")
            body = ([w, *(cell(cells.get((*at, w))) for at in columns)] for w in ways)
            yield table(["", *head], body)
    why: dict[str, dict[str, None]] = {}
    for r in rows:
        for text in r["refused"].values():
            why.setdefault(text, {})[f"{r['way']} ({r['engine']})"] = None
    if why:
        yield (
            "Where a cell says *rejected*, or counts fewer world sizes than others, "
            "the library raised an error instead of training. Its messages:"
        )
    yield "\n".join(f"- *{text}*: {'; '.join(ways)}" for text, ways in why.items())


def overview(rows: Iterable[Row]) -> str:
    """Lay out a line for each strategy: its runs, and their largest difference."""

    def strategy(row: Row) -> str:
        first, _, variant = row["way"].partition(", ")
        return str(variant if first == "mesh" else FULL_NAMES.get(first, first))

    lines = []
    for name, some in group_by(rows, strategy).items():
        runs, worst = agreement(some)
        lines.append([name, runs, small(worst)])
    head = ["strategy", "runs in float64", "largest difference"]
    return table(head, lines)


def collectives(rows: list[Row]) -> Iterator[str]:
    """Show the calls in one process, and the bits between processes."""
    local = [r for r in rows if r["engine"] == ONE]
    between = [r for r in rows if r["engine"] != ONE]
    yield (
        f"In one process, {total(local, 'calls'):,} calls gave NumPy's "
        "results: small integers exactly, and normal float64 values within "
        f"{small(max(r['difference'] for r in local))} of the sum of their absolute "
        f"values. Between processes, {total(between, 'results'):,} results had to "
        "equal those of one process bit for bit, and "
        f"{differing(between) or 'none'} differed."
    )
    backends = unique(local, "backend")
    cells = {(r["backend"], r["collective"]): r for r in local}
    body = []
    for name in unique(local, "collective"):
        at = [cells[backend, name] for backend in backends]
        body.append([name, *(f"{r['calls']}, {small(r['difference'])}" for r in at)])
    yield (
        f"In one process, on {listed(local[0]['ranks'])} ranks and vectors of "
        f"{listed(local[0]['lengths'])} elements, of each numeric dtype: the number of "
        "calls, and the largest error on normal float64 values."
    )
    yield table(["", *backends], body)
    lines = [
        [ENGINES[r["engine"]], r["backend"], r["ranks"], r["results"], len(r["differ"])]
        for r in between
    ]
    yield "Between processes: the number of results, and how many differ in any bit."
    yield table(["", "backend", "ranks", "results", "differ"], lines, words=2)


def bugs(rows: list[Row]) -> Iterator[str]:
    """Show which tests noticed the bugs, and what they did to the weights."""
    tests = {test for r in rows for test in r["tests"]}
    far = changes(rows)
    yield (
        f"We planted {len(rows)} bugs, one at a time. In all, {len(tests)} different "
        f"tests noticed {noticed(rows)} of them. These tests check general properties, "
        "such as agreement with one device; at least one of them, "
        "`test_a_round_sends_what_was_there_before_it`, was written after its bug "
        "was known. We chose the bugs ourselves, so this does not "
        "estimate how many other bugs the tests would notice. In the "
        f"training runs above, {len(far)} bugs changed the weights, each by at least "
        f"{min(far):.2f} of the largest weight of a tensor. With each of the others, "
        "the runs that finished differed from one device only by rounding, so their "
        "weights alone would not have revealed the bug."
    )
    body = []
    for r in rows:
        failed = f", {r['raised']} of {r['runs']} runs failed" * (r["raised"] > 0)
        tests = ", ".join(f"`{test}`" for test in r["tests"])
        body.append(
            [r["bug"], f"`{r['file']}`", tests, small(r["difference"]) + failed]
        )
    head = ["bug", "planted in", "first failing test", "change of the weights"]
    yield table(head, body, words=3)


def invalid(rows: list[Row]) -> Iterator[str]:
    """Show how many inputs were tried, and what became of them."""
    keys = ("tried", "refused", "equal")
    tried, refused, equal = (total(rows, key) for key in keys)
    yield (
        f"Of {tried:,} invalid options and damaged files, {refused:,} were rejected "
        f"with one of the library's own errors. The other {equal:,} were files whose "
        "damage did not change the data that the library reads from them."
    )
    body = [[r["what"], *(r[key] for key in keys)] for r in rows]
    yield table(["", "tried", "rejected", "read as before"], body)


def faults(rows: list[Row]) -> Iterator[str]:
    """Show how soon failed ranks were reported, and runs that resumed."""
    happened = [r for r in rows if "fault" in r]
    again = [r for r in rows if "restarts" in r]
    longest = max(r["seconds"] for r in happened)
    bad = sum(len(r["wrong"]) for r in rows)
    yield (
        f"In {total(happened, 'times')} launches of two ranks, a rank was disturbed on "
        f"purpose. {f'All but {bad} times' if bad else 'Each time'}, the error named "
        f"the rank, all processes ended within {longest:.1f} s, and no file or shared "
        f"memory was left. Of the runs that were killed repeatedly and resumed from "
        f"checkpoints, {all_of(sum(r['same_bits'] for r in again), len(again))} ended "
        "with exactly the weights of an undisturbed run, bit for bit."
    )
    cells = {
        (r["engine"], r["fault"]): f"{r['times']}, {r['seconds']:.2f} s"
        for r in happened
    }
    engines = unique(happened, "engine")
    body = [
        [fault, *(cells.get((engine, fault), "not run") for engine in engines)]
        for fault in unique(happened, "fault")
    ]
    yield "Repetitions, and the longest time until the rank was named and all ended:"
    yield table(["", *(ENGINES[engine] for engine in engines)], body)
    lines = [[ENGINES[r["engine"]], r["restarts"], r["same_bits"]] for r in again]
    yield table(["killed and resumed", "kills", "same bits"], lines)


def scripts(rows: list[Row]) -> Iterator[str]:
    """Show that all scripts resumed, and how often other processes did not end."""
    kills = total(rows, "kills")
    yield (
        f"{number(len(rows)).title()} scripts were killed {kills} times in all. Each "
        "time, the script resumed from its checkpoint, and in the end it had the "
        "weights of an undisturbed run, bit for bit. The frameworks did not always "
        "clean up: ten seconds after "
        f"{number(kills - total(rows, 'ended'))} of the kills, other processes of the "
        "job were still running. On a GPU, such an orphan keeps its memory allocated, "
        "so end orphans before you restart a job."
    )
    keys = (
        "machines",
        "kills",
        "launchers",
        "epochs",
        "ended",
        "ended_without_launcher",
    )
    head = ["", "machines", "kills", "of these, of a launcher", "epochs trained",
            "kills after which all ended within 10 s",
            "of these, of a launcher"]  # fmt: skip
    yield table(head, ([f"`{r['script']}.py`", *(r[k] for k in keys)] for r in rows))


def times(rows: list[Row]) -> Iterator[str]:
    """Show medians and quartiles of times and ratios."""
    text = speed(rows)
    ring = ring_speed(rows)
    calls = [  # the fixed price of a call
        f"{r['seconds'] * 1e6:.1f} µs ({r['backend']})"
        for r in rows
        if r["candidate"] == "one element on 2, ours"
    ]
    if calls:
        text += " An all-reduce of one element on two simulated devices, which "
        text += f"measures the fixed cost of a call, took {', '.join(calls)}."
    lines = []
    for r in wrappers(rows):
        ours, _, peer = r["candidate"].partition(", to ")
        model, _, engine = ours.partition(", two, ")
        if engine:
            over = "shared memory" if engine == "shared_memory" else ENGINES[engine]
            ours = f"{model}, {over}"
        peer = WRAPPERS.get((r["part"], r["backend"]), f"PyTorch's {peer}")
        found = f"; {verdict(r)}" * (verdict(r) != UNCLEAR)
        ratio = written(r["ratio"], r["ratio_quartiles"])
        lines.append([ours, peer, f"{ratio}{found}"])
    head = ["the library's step", "compared with", "ratio of times"]
    text += f"\n\n{table(head, lines, words=2)}"
    if ring:
        text += f"\n\n{ring} By the size of the vector:\n\n{ring_sizes(rows)}"
    yield text
    body = [
        [r["part"], r["candidate"], r["backend"], written(1e3 * r["seconds"]),
         written(r["ratio"], r["ratio_quartiles"])]
        for r in rows
    ]  # fmt: skip
    yield table(["part", "candidate", "backend", "ms", "ratio"], body, words=3)
