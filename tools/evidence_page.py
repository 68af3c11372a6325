"""Lay the evidence page out: Markdown from a record, and no result outside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

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


# -- one function per table: what was found in a sentence, and all rows ----------------


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


# -- the page --------------------------------------------------------------------------


class Shown(NamedTuple):
    """The words of a table; `show` gives what was found, then the parts of all rows."""

    title: str
    show: Callable[[list[Row]], Iterator[str]]
    how: str


TURNS = (
    "The candidates took turns in one run, with at least 11 repetitions. Each "
    "repetition gives a ratio of two times. A cell shows its median and, in "
    "parentheses, its quartiles. A training step is compared with that of one worker "
    "with the whole batch (0.5 is twice as fast), an all-reduce with the first line of "
    "its group, which is the framework's own or NumPy's, and ZeRO with data "
    "parallelism. A line with `to` names another peer; *its own* is the framework's "
    "wrapper."
)
SHOWN = {
    "strategies": Shown(
        "Parallelism strategies compared with one device",
        weights,
        "Small networks took 12 steps of SGD with momentum 0.9, once on one device and "
        "once under each strategy. A cell gives the largest difference of any weight "
        "on any device, divided by the largest weight of the same tensor on one "
        "device. The number in parentheses counts the world sizes: of 2, 3, and 4 in "
        "one process, and of 2 and 3 between processes. The last batch of each epoch "
        "has 7 examples, so it never divides evenly.",
    ),
    "mesh": Shown(
        "Meshes compared with one device",
        weights,
        "The same steps and the same comparison, with the ranks on a mesh of two or "
        "three axes of two ranks each.",
    ),
    "collectives": Shown(
        "Collectives compared with NumPy",
        collectives,
        "Every collective was called on vectors of many lengths and dtypes.",
    ),
    "bugs": Shown(
        "Planted bugs",
        bugs,
        "Each bug was planted in a copy of the library. The ordinary tests of training "
        "then ran there until the first of them failed. The last column is the largest "
        "difference from one device in the runs of the first table (three ranks, "
        "PyTorch; for bugs in processes, NumPy over shared memory).",
    ),
    "faults": Shown(
        "Failed ranks reported and cleaned up",
        faults,
        "In the middle of a run, one of two ranks was killed, exited, raised an "
        "exception, or met a full disk.",
    ),
    "scripts": Shown(
        "Scripts killed and restarted",
        scripts,
        "Each script of {doc}`scripts` ran in float64; two machines are two network "
        "namespaces of one computer. A launcher or a worker, chosen at random, was "
        "killed with `SIGKILL` at a random moment, and the run was restarted. The "
        "final weights also had to agree with those of one device within 10⁻¹².",
    ),
    "nonsense": Shown(
        "Invalid input rejected",
        invalid,
        "Options of the command got values that make no sense, and files were damaged "
        "at random, by seed.",
    ),
    "ratios": Shown("Speed compared with the frameworks", times, TURNS),
    "sharded": Shown("Speed of sharded training", times, TURNS),
}
TOP = """\
# Evidence

Does the library of this book compute on many devices what one device computes? These \
are the results of {minutes:.0f} minutes of tests:

{conclusions}

**Only {{ref}}`one section <one-gpu>` of this page comes from a GPU, and nothing ran \
on several GPUs or over a real network.** The rest ran on {cores} CPU cores of one \
computer, with at most four processes or eight simulated devices. The networks are \
small, and the runs are short.

{{ref}}`One command <when-and-where>` wrote this page from runs of the programs; no \
number was typed by hand. A wrong result stops the command, and this page then shows \
it. All measured values are also in `chapters/measured/evidence.json`."""
GAME = """\
## Which run is broken?

Most of the {ref}`planted bugs below <planted-bugs>` were each put into a copy of the \
library, which then trained for 100 steps, as the correct library did, with the same \
seed. In {numref}`which-run`, you see the losses first, and the weights after your \
guess. Left out are bugs that stop the run, change only what is reported, or depend on \
chance. \
`python tools/record_bugs.py` records these runs in \
`chapters/measured/planted_runs.json`.

```{which-run}
:name: which-run

Two recorded runs, one of them with a planted bug. Guess from the losses; then compare \
the weights with those of one device.
```"""
ON_ONE_GPU = """\
(one-gpu)=
## On one GPU

On one {GPU} ({date}; PyTorch {PyTorch}, CUDA {CUDA}, driver {driver}), \
{units} unit tests of the PyTorch backend {failed}. Of the chapters' cells, {cells} \
ran and, wherever an output is compared, printed that of the page; {others}. \
On devices that were simulated on that GPU, no parallelism strategy differed from one \
device by more than {difference} of the largest weight in {runs} runs in float64.

With one GPU, NCCL can connect one rank only to itself: it did so, and rejected two \
ranks that shared the GPU. **Several GPUs, NCCL between them, and MXNet and Paddle on \
a GPU remain untested.**"""
HOW_ON_ONE_GPU = """\
The library was that of version {version}, with sources `{sources}`, on Python \
{Python} and NumPy {NumPy}, with {cores} CPU cores. The tests of processes, the cells \
that need Horovod or TensorFlow, and those of the other frameworks are not counted. To \
repeat it: `make evidence ONLY=one_gpu` on a machine with a GPU. All values are in \
`chapters/measured/one_gpu.json`. Times are medians, with the quartiles in \
parentheses; a copy or a computation counts until the GPU has finished. An *error* is \
the largest difference from float64, divided by the largest value. *Last bits* counts \
how many of 10,000 elements differ from those of a CPU."""
WHEN = """\
(when-and-where)=
## When and where

All tables together took {minutes:.0f} minutes. To make them again, or one of them:

```bash
make evidence               # all tables
make evidence ONLY=ratios   # one table
make release-check          # may this page be published?
```

Each table records a hash of the sources that it depends on, so `make release-check` \
can tell whether it was made from the tree that is published. The check also fails if \
other programs used more than 0.3 cores in the five seconds before or after a table."""


def folded(title: str, *parts: str) -> str:
    """Fold a part of the page under a title."""
    return f":::::{{dropdown}} {title}\n" + "\n\n".join(parts) + "\n:::::"


def times_on_gpu(measured: Mapping[str, Any], *before: str) -> Iterator[list[str]]:
    """Lay the times and rates of a nested record out: where, and the value."""
    for name, value in measured.items():
        where = [*before, f"{int(name):,} bytes" if name.isdigit() else name]
        if isinstance(value, dict):
            yield from times_on_gpu(value, *where)
        elif isinstance(value, list) and len(value) == 3:
            low, middle, high = (
                f"{1e3 * x:,.0f}" if x > 1 else f"{1e3 * x:.3g}" for x in value
            )
            yield [", ".join(where), f"{middle} ms ({low} to {high})"]
        elif isinstance(value, float):
            written = small(value) if value < 0.01 else f"{value:.3g}"
            yield [", ".join(where), written]
        elif isinstance(value, int):
            yield [", ".join(where), f"{value:,}"]


def on_one_gpu(record: Mapping[str, Any], shown: str) -> Iterator[str]:
    """Show what ran on a GPU, and fold all that was measured there.

    `shown` is the version of PyTorch whose outputs the pages show.
    """
    units, cells = (record["results"][k] for k in ("unit tests", "cells of chapters"))
    worked = units["passed"] if not units["failed"] else units["failed"]
    differ: dict[str, list[str]] = {}
    for name in cells["names"]:  # chapters/failures.ipynb::Cell 2
        page, _, cell = name.partition("/")[2].partition("::Cell ")
        differ.setdefault(page, []).append(cell)
    other = "none differed"
    if differ:
        names = "; ".join(
            f"in {page}, the code cells {' and '.join(numbers)}, counted from 0"
            for page, numbers in differ.items()
        )
        other = f"{cells['failed']} did not ({names}: the page quotes PyTorch {shown})"
    yield ON_ONE_GPU.format(
        **record["machine"], units=f"{worked:,}", cells=f"{cells['passed']:,}",
        failed="failed" if units["failed"] else "passed, and none failed",
        others=other,
        difference=small(record["strategies"]["largest difference"]),
        runs=record["strategies"]["runs"],
    )  # fmt: skip
    parts = ("product", "copies", "overlap", "matrices", "last bits", "utilization",
             "launches", "activations", "decoder")  # fmt: skip
    rows = [row for part in parts for row in times_on_gpu(record[part], part)]
    yield folded(
        "How, and all times",
        HOW_ON_ONE_GPU.format(**record["machine"]),
        table(["measured", "value"], rows),
    )


def conclusions(record: Record) -> Iterator[str]:
    """Give what the page found, a line for each question that the record answers."""
    rows = {name: each["rows"] for name, each in record.items()}
    weighed = [*rows.get("strategies", []), *rows.get("mesh", [])]
    if double := compared_weights(weighed):
        yield (
            f"- **Weights.** {sum(len(r['ranks']) for r in double)} runs in float64, "
            "of small networks under all strategies and several meshes, ended with "
            "the weights of one device, to within "
            f"{small(max(r['difference'] for r in double))} of a tensor's largest "
            "weight."
        )
    if found := rows.get("collectives"):
        calls = sum(r.get("calls", 0) for r in found)
        yield f"- **Collectives.** {calls:,} calls gave the results of NumPy."
    if found := rows.get("bugs"):
        noticed = sum(bool(r["tests"]) for r in found)
        yield (
            f"- **Bugs.** We chose and planted {len(found)} bugs; ordinary tests "
            f"noticed {all_of(noticed, len(found))}."
        )
    if found := rows.get("scripts"):
        yield (
            f"- **Kills.** After each of {sum(r['kills'] for r in found)} kills, the "
            "scripts resumed and ended with the bits of an undisturbed run."
        )
    if kinds := verdicts([*rows.get("ratios", []), *rows.get("sharded", [])]):
        speed = (
            "- **Speed.** Compared with the frameworks' own wrappers on CPUs, training "
            f"steps were faster in {kinds['faster']} cases, slower in "
            f"{kinds['slower']}, and not distinguishable in "
            f"{kinds['not distinguishable']}."
        )
        if own := rings(rows.get("ratios", [])):
            speed += (
                " Between two processes, the library's ring all-reduce took up to "
                f"{max(own):.2f} times as long as the engine's own."
            )
        yield speed


def render(
    record: Record, wrong: Mapping[str, list[Row]], gpu: Mapping[str, Any]
) -> str:
    """Lay the page out; say which of all tables the record does not have."""
    machines = [each["machine"] for each in record.values()]
    cores = " or ".join(unique([{"cores": str(m["cores"])} for m in machines], "cores"))
    shown_by = " or ".join(unique(machines, "PyTorch"))
    minutes = sum(each["made"]["minutes"] for each in record.values())
    short = "\n".join(conclusions(record))
    top = TOP.format(cores=cores, minutes=minutes, conclusions=short)
    parts = [top, GAME, *on_one_gpu(gpu, shown_by)]
    if missing := [shown.title for name, shown in SHOWN.items() if name not in record]:
        parts.append(f"Not made yet, and not shown: {'; '.join(missing)}.")
    there = {name: shown for name, shown in SHOWN.items() if name in record}
    for name, shown in there.items():
        found, *tables = shown.show(record[name]["rows"])
        label = "(planted-bugs)=\n" * (name == "bugs")
        parts += [f"{label}## {shown.title}", found]
        if name in wrong:
            lines = [f"- {row}" for row in wrong[name]]
            parts.append("**Wrong results:**\n\n" + "\n".join(lines))
        how = f"{shown.how} To repeat it: `make evidence ONLY={name}`."
        parts.append(folded("How, and all rows", how, *tables))
    made = {name: record[name]["made"] for name in there}
    lines = [
        [there[name].title, m["date"], m["version"], f"`{m['sources']}`", m["minutes"],
         m["busy_before"], m["busy_after"]]
        for name, m in made.items()
    ]  # fmt: skip
    head = ["", "begun", "version", "sources (hash)", "minutes", "busy before",
            "busy after"]  # fmt: skip
    about = dict.fromkeys(
        ", ".join(f"{key} {value}" for key, value in machine.items())
        for machine in machines
    )
    parts += [
        WHEN.format(minutes=minutes),
        folded("When, from which sources, and on which machine",
               table(head, lines, words=4), *about,
               "*Busy* is the number of cores that worked while the command slept."),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"
