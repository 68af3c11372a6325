"""Lay out each table of the evidence: a sentence of what was found, then all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
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
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """Lay out a table; the first columns are words, the others are numbers."""
    lines = [list(head), ["---"] * words + ["--:"] * (len(head) - words)]
    lines += [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def small(x: float | None) -> str:
    """Write a difference: 0, or two digits and a power of ten, in one piece."""
    if not x:
        return "none" if x is None else "0"
    digits, _, power = f"{x:.1e}".partition("e")
    return f"{digits}·10{str(int(power)).translate(_RAISED)}"


def unique(rows: Iterable[Row], *keys: str) -> list[Any]:
    """Return the different values of a key, or of several, in their order."""
    found = dict.fromkeys(tuple(r[key] for key in keys) for r in rows)
    return [values[0] for values in found] if len(keys) == 1 else list(found)


def all_of(count: int, total: int) -> str:
    """Write how many of a total: the number, or "all 3"."""
    return f"all {total}" if count == total else str(count)


def compared_weights(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of runs in float64."""
    return [r for r in rows if r["ranks"] and r["dtype"] == "float64"]


def verdict(row: Row) -> str:
    """Tell whether the quartiles of a ratio exclude 1."""
    low, high = row["ratio_quartiles"]
    return "faster" if high < 1 else "slower" if low > 1 else "not distinguishable"


def verdicts(rows: Iterable[Row]) -> Counter[str]:
    """Count the comparisons of training steps with a framework's own wrapper."""
    return Counter(verdict(r) for r in rows if ", to " in r["candidate"])


def rings(rows: Sequence[Row]) -> list[float]:
    """Return the ratios of our ring to the all-reduce of the same engine."""
    return [  # the engine's own is in the line before
        ring["ratio"]
        for native, ring in pairwise(rows)
        if native["ratio"] == 1
        and native["candidate"].endswith(", native")
        and ring["candidate"] == native["candidate"].replace("native", "our ring")
    ]


def weights(rows: list[Row]) -> Iterator[str]:
    """Show the differences from the weights of one device."""
    runs, double = [r for r in rows if r["ranks"]], compared_weights(rows)
    worst = max(r["difference"] for r in double)
    yield (
        f"In {sum(len(r['ranks']) for r in double):,} runs in float64 of networks with "
        f"at most {max(r['weights'] for r in runs):,} weights, no weight on any device "
        f"differed from one device's by more than {small(worst)} of the largest weight "
        f"of its tensor, which is {worst / 2**-52:.0f} times the machine epsilon."
    )

    def cell(row: Row | None) -> str:
        if row is None or not row["ranks"]:
            return "error" if row else "not run"
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
            "Where a cell says *error*, or counts fewer world sizes than others, "
            "the library rejected the combination. Its messages:"
        )
    yield "\n".join(f"- *{text}*: {'; '.join(ways)}" for text, ways in why.items())


def collectives(rows: list[Row]) -> Iterator[str]:
    """Show the calls in one process, and the bits between processes."""
    local = [r for r in rows if r["engine"] == ONE]
    between = [r for r in rows if r["engine"] != ONE]
    yield (
        f"In one process, {sum(r['calls'] for r in local):,} calls gave NumPy's "
        "results: small integers exactly, and normal float64 values within "
        f"{small(max(r['difference'] for r in local))} of the sum of their absolute "
        f"values. Between processes, {sum(r['results'] for r in between):,} results "
        "had to equal those of one process bit for bit, and "
        f"{sum(len(r['differ']) for r in between) or 'none'} differed."
    )
    backends = unique(local, "backend")
    cells = {(r["backend"], r["collective"]): r for r in local}
    body = []
    for name in unique(local, "collective"):
        at = [cells[backend, name] for backend in backends]
        body.append([name, *(f"{r['calls']}, {small(r['difference'])}" for r in at)])
    yield (
        f"In one process, on {local[0]['ranks']} ranks and vectors of "
        f"{local[0]['lengths']} elements, of each numeric dtype: the number of calls, "
        "and the largest error on normal float64 values."
    )
    yield table(["", *backends], body)
    lines = [
        [ENGINES[r["engine"]], r["backend"], r["ranks"], r["results"], len(r["differ"])]
        for r in between
    ]
    yield table(["", "backend", "ranks", "results", "differ"], lines, words=2)


def bugs(rows: list[Row]) -> Iterator[str]:
    """Show which tests noticed the bugs, and what they did to the weights."""
    noticed = [r for r in rows if r["tests"]]
    tests = {test for r in noticed for test in r["tests"]}
    far = [x for r in rows if (x := r["difference"] or 0) > 1e-12]
    yield (
        f"We planted {len(rows)} bugs, one at a time. {len(tests)} different tests "
        f"noticed {all_of(len(noticed), len(rows))} of them, and none of these tests "
        "was written against the bug that it noticed. We chose the bugs ourselves, so "
        "this does not estimate how many other bugs the tests would notice. In the "
        f"training runs above, {len(far)} bugs changed the weights by at least "
        f"{small(min(far))}. Of the others, the runs that finished differ from one "
        "device only by rounding."
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
    tried, refused, equal = (sum(r[key] for r in rows) for key in keys)
    yield (
        f"Of {tried:,} invalid options and damaged files, {refused:,} were rejected "
        f"with one of the library's own errors; the other {equal:,} were files that "
        "read as before the damage."
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
        f"In {sum(r['times'] for r in happened)} launches of two ranks, a rank was "
        f"disturbed on purpose. "
        f"{f'All but {bad} times' if bad else 'Each time'}, the error named the rank, "
        f"all processes ended, and no file or shared memory was left, within "
        f"{longest:.1f} s. Of the runs that were killed repeatedly and resumed from "
        f"checkpoints, {all_of(sum(r['same_bits'] for r in again), len(again))} ended "
        "with the bits of an undisturbed run."
    )
    cells = {
        (r["engine"], r["fault"]): f"{r['times']}, {r['seconds']:.1f} s"
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
    kills = sum(r["kills"] for r in rows)
    yield (
        f"After each of {kills} kills, the script resumed from its checkpoint, and in "
        "the end it had the weights of an undisturbed run, bit for bit. The frameworks "
        "did not always clean up: ten seconds after "
        f"{kills - sum(r['ended'] for r in rows)} of the kills, other processes of the "
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
    head = ["", "machines", "kills", "of a launcher", "epochs", "ended within 10 s",
            "of these, without launcher"]  # fmt: skip
    yield table(head, ([f"`{r['script']}.py`", *(r[k] for k in keys)] for r in rows))


def times(rows: list[Row]) -> Iterator[str]:
    """Show medians and quartiles of times and ratios."""

    def between(middle: float, ends: Sequence[float] = ()) -> str:
        words = [f"{x:.2f}" if x >= 0.1 else f"{x:.2g}" for x in (middle, *ends)]
        return f"{words[0]} ({words[1]}\u2013{words[2]})" if ends else words[0]

    kinds = verdicts(rows)
    text = (
        f"Of {kinds.total()} comparisons with the framework's own wrapper, the "
        f"library's training step was faster in {kinds['faster']}, slower in "
        f"{kinds['slower']}, and not distinguishable in "
        f"{kinds['not distinguishable']}, where the quartiles of the ratio include 1."
    )
    if own := rings(rows):
        text += (
            " Between two processes, the library's ring took from "
            f"{min(own):.2f} to {max(own):.2f} times as long as the all-reduce of the "
            f"same engine ({len(own)} comparisons)."
        )
    calls = [  # the fixed price of a call
        f"{r['seconds'] * 1e6:.1f} µs ({r['backend']})"
        for r in rows
        if r["candidate"] == "one element on 2, ours"
    ]
    if calls:
        text += " An all-reduce of one element on two simulated devices took "
        text += f"{', '.join(calls)}."
    yield text
    body = [
        [r["candidate"], r["backend"], between(1e3 * r["seconds"]),
         between(r["ratio"], r["ratio_quartiles"]),
         verdict(r) if ", to " in r["candidate"] else ""]
        for r in rows
    ]  # fmt: skip
    yield table(["", "backend", "ms", "ratio", ""], body, words=2)
