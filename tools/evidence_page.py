"""Lay the evidence page out: Markdown from a record, and no result outside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from evidence_tables import (
    Record,
    Row,
    agreement,
    bugs,
    changes,
    collectives,
    differing,
    faults,
    invalid,
    largest_network,
    noticed,
    number,
    power,
    scripts,
    short_speed,
    small,
    table,
    times,
    total,
    unique,
    weights,
)


class Shown(NamedTuple):
    """The words of a table; `show` gives what was found, then what is folded."""

    title: str
    show: Callable[[list[Row]], Iterator[str]]
    how: str


TURNS = (
    "The candidates took turns in one run, with at least 11 repetitions. Each "
    "repetition gives a ratio of two times. A cell shows its median and, in "
    "parentheses, its quartiles. While two processes trained, each had a core of its "
    "own. All-reduces ran where the system put them: on one core, gloo's thread and "
    "the one that waits for it take turns, milliseconds at a time. A training step is "
    "compared with that of one worker with the whole batch. There, 0.5 is twice as "
    "fast; less is possible because, for some networks, half the batch takes one "
    "worker less than half the time. An all-reduce is compared with the first line of "
    "its group, which is the framework's own or NumPy's, and ZeRO with data "
    "parallelism. *Lenet* is the network of the chapters, and *deep* a perceptron "
    "that uses one matrix 32 times, so that computing takes most of its step. A row "
    "with `to` is compared with the candidate that it names: `its own` is the "
    "framework's wrapper, which communicates through gloo on these CPUs, and "
    "`horovod` is the library's step over Horovod. The library's ZeRO 3 recomputes "
    "every layer in the backward pass, and so does the `fully_shard` marked "
    "*recomputes*."
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
        "three axes of two ranks each. A mesh of three axes has eight ranks, and ran "
        "in one process only.",
    ),
    "collectives": Shown(
        "Collectives compared with NumPy",
        collectives,
        "Every collective was called on vectors of several lengths and of every "
        "numeric dtype that the backend has for it.",
    ),
    "bugs": Shown(
        "Planted bugs",
        bugs,
        "Each bug was planted in a copy of the library. The ordinary tests of training "
        "then ran there until the first of them failed. The last column is the largest "
        "difference from one device in the runs of the first two tables on PyTorch "
        "(three ranks, two for tensor parallelism, four or eight on a mesh) or, for "
        "bugs in processes, on NumPy over shared memory (three ranks).",
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

Does the library of this book compute on many devices what one device computes? The \
tests on this page, which take {minutes:.0f} minutes, found:

{conclusions}

**What was not tested.** Nothing ran on several GPUs or over a real network, and only \
{{ref}}`one section <one-gpu>` comes from a GPU. The rest ran on {cores} CPU cores of \
one computer, with at most four processes or eight simulated devices. The networks \
have at most {weights:,} weights, and the training runs of the first line take 12 \
steps of SGD with momentum, in float64. So this page does not show that Adam or \
training in mixed precision is correct, or that a large model converges.

No result was typed by hand: {{ref}}`one command <when-and-where>` ran the programs \
behind all tables and wrote this page, except for the next two sections, which name \
their own commands and records. If a result were wrong, this page would list it, and \
the command would fail. All measured values are also in \
`chapters/measured/evidence.json`."""
GAME = """\
## Which run is broken?

Could you have seen such a bug in the loss? Most of the \
{ref}`planted bugs below <planted-bugs>` were each put into a copy of the library, \
which then trained for up to 100 steps from the same seed as the correct library. \
{numref}`which-run` shows both losses first, and the weights after your guess. Bugs \
that stop the run, change only what is reported, or depend on chance are left out. \
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

On one {GPU}, {units} unit tests of the PyTorch backend {failed}. Of the {ran} code \
cells of the chapters that ran there, {cells} printed what their page shows, wherever \
outputs are compared. {others} On devices that were simulated on that GPU, {runs} \
training runs in float64, under all parallelism strategies, ended with the weights of \
one device, to within {difference} of a tensor's largest weight. This was on {date}, \
with PyTorch {PyTorch}, CUDA {CUDA}, and driver {driver}. The tables below are made \
again for every release, but this section is not, so the library may have changed \
since then.

On one GPU, NCCL accepts a group of one rank only: it ran one, and rejected two ranks \
that shared the GPU. **Several GPUs, NCCL between them, and MXNet and Paddle on \
a GPU remain untested.**"""
WHY_OTHERWISE = {
    "failures.ipynb": "quote messages of PyTorch {shown}, but {ran} ran there",
    "why_not_faster.ipynb": "lacked the text form of their figures, which has been "
    "fixed since",
}
HOW_ON_ONE_GPU = """\
The library was that of version {version} (hash of its sources: `{sources}`), on \
Python {Python} and NumPy {NumPy}, with {cores} CPU cores. Not counted are the tests \
of processes, the cells that need Horovod or TensorFlow, and the tests and cells of \
the other frameworks. To repeat it: `make evidence ONLY=one_gpu` on a machine with a \
GPU. All values are in `chapters/measured/one_gpu.json` and, the times, in \
`one_gpu_times.json`. The times were taken on {timed}, of the library with the hash \
`{timed_sources}`. They are medians, with the quartiles in parentheses; a copy or a \
computation counts until the GPU has finished. Another run, on {again}, took {low} to \
{high} times as long, half of the times within {half} of these; the largest ratio is \
that of "{where}". \
An *error* is the largest difference from float64, divided by the largest value."""
ON_GPU = {  # a part of the record: what it measured
    "product": "A matrix of 10,000 × 100 times one of 100 × 100,000, and fetching the "
    "result of 4 GB ({doc}`devices`):",
    "copies": "Copies into memory that is already allocated:",
    "overlap": "Eight batches of 64 MiB are sent to the GPU, and each is multiplied "
    "twice by a square matrix of width 4,096 ({doc}`bottlenecks`):",
    "matrices": "Products of two square matrices of width 8,192:",
    "last bits": "How many of 10,000 results differ from those of a CPU in their last "
    "bits, in float32:",
    "utilization": "What `nvidia-smi` showed of five loops ({doc}`bottlenecks`):",
    "launches": "A training step of LeNet with 32 or 8,192 images, by the library, by "
    "PyTorch's own layers, and by a CUDA graph of these:",
    "activations": "What a transformer block of width 2,048 with 16 heads stores for "
    "its backward pass in bfloat16, besides its input and output, by the formula of "
    "{doc}`sharding` and measured, and the time of both passes:",
    "decoder": "A training step, with AdamW, of a decoder in bfloat16:",
}
KEYS = {  # words of the record: words of the page
    "call returns": "the call returns after",
    "done": "the GPU is done after",
    "kernels": "number of kernels",
    "kernel seconds": "time in kernels",
    "step": "time of the step",
    "seconds": "time",
    "formula": "formula, bytes",
    "without scores": "formula without scores, bytes",
    "percent": "utilization, %",
    "watts": "power, W",
    "tokens": "tokens per sequence",
    "4 sequences of 1024 tokens": "4 sequences of 1,024 tokens",
    "1 sequences of 4096 tokens": "1 sequence of 4,096 tokens",
    "LeNet, 32 images a step": "LeNet, 32 images per step",
    "LeNet, 8192 images a step": "LeNet, 8,192 images per step",
}
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


def word_for(name: str) -> str:
    """Return the page's word for a key of the record; digits are a size."""
    return f"{int(name):,} bytes" if name.isdigit() else KEYS.get(name, name)


def rows_on_gpu(measured: Mapping[str, Any], *before: str) -> Iterator[list[str]]:
    """Lay the times and rates of a nested record out: where, and the value."""
    for name, value in measured.items():
        where = [*before, word_for(name)]
        label = ", ".join(where)
        if isinstance(value, dict):
            yield from rows_on_gpu(value, *where)
        elif isinstance(value, list) and len(value) == 3:
            yield [label, time_of(value[1], value)]
        elif isinstance(value, float):
            written = small(value) if value < 0.01 else f"{value:.3g}"
            yield [label, time_of(value) if name.endswith("seconds") else written]
        elif isinstance(value, int):
            yield [label, f"{value:,}"]


def time_of(seconds: float, quartiles: Sequence[float] = ()) -> str:
    """Write a time with three digits, in µs if it is short, and its quartiles."""
    unit, scale = ("µs", 1e6) if seconds < 1e-4 else ("ms", 1e3)

    def digits(x: float) -> str:
        places = max(0, 2 - math.floor(math.log10(scale * x))) if x else 0
        return f"{scale * x:,.{places}f}"

    between = [digits(x) for x in quartiles]
    ends = f" ({between[0]} to {between[-1]})" if between else ""
    return f"{digits(seconds)} {unit}{ends}"


def medians(measured: Any, *where: str) -> Iterator[tuple[str, float]]:
    """Return the times of a nested record: what was timed, and the median."""
    if isinstance(measured, Mapping):
        for name, value in measured.items():
            yield from medians(value, *where, word_for(name))
    elif isinstance(measured, list):
        yield ", ".join(where), measured[1]


def spread(times: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, str]:
    """Compare two runs: their ratios, and which time differs most."""
    first = dict(medians({part: times[part] for part in ON_GPU if part in times}))
    ratios = {name: x / first[name] for name, x in medians(again) if name in first}
    off = sorted(abs(ratio - 1) for ratio in ratios.values())
    return {
        "again": again["machine"]["date"],
        "low": f"{min(ratios.values()):.2g}",
        "high": f"{max(ratios.values()):.2g}",
        "half": f"{off[len(off) // 2]:.0%}",
        "where": max(ratios, key=lambda name: ratios[name]),
    }


def on_one_gpu(
    record: Mapping[str, Any],
    times: Mapping[str, Any],
    again: Mapping[str, Any],
    shown: str,
) -> Iterator[str]:
    """Show what ran on a GPU, and fold all that was measured there.

    `shown` is the version of PyTorch whose outputs the pages show.
    """
    units, cells = (record["tests"][k] for k in ("unit tests", "cells of chapters"))
    worked = units["passed"] if not units["failed"] else units["failed"]
    differ: dict[str, list[str]] = {}
    for name in cells["names"]:  # chapters/failures.ipynb::Cell 2
        page, _, cell = name.partition("/")[2].partition("::Cell ")
        differ.setdefault(page, []).append(cell)
    other = "None differed."
    if differ:
        names = "; ".join(
            f"cells {', '.join(sorted(numbers, key=int))} of `{page}` "
            + WHY_OTHERWISE.get(page, "differ").format(
                shown=shown, ran=record["machine"]["PyTorch"]
            )
            for page, numbers in sorted(differ.items())
        )
        failed = number(cells["failed"])
        known = set(differ) <= set(WHY_OTHERWISE)
        lead = "None of" if known else "See"
        also = " is a wrong result" * known
        other = f"{lead} the other {failed}{also} (cells count from 0): {names}."
    yield ON_ONE_GPU.format(
        **record["machine"], units=f"{worked:,}", cells=f"{cells['passed']:,}",
        ran=f"{cells['passed'] + cells['failed']:,}",
        failed="failed" if units["failed"] else "passed and none failed",
        others=other,
        difference=small(record["strategies"]["largest difference"]),
        runs=record["strategies"]["runs"],
    )  # fmt: skip
    tables = []
    for part, what in ON_GPU.items():
        tables += [
            what,
            table(["measured", "value"], rows_on_gpu({**times, **record}[part])),
        ]
    how = HOW_ON_ONE_GPU.format(
        **record["machine"],
        timed=times["machine"]["date"],
        timed_sources=times["machine"]["sources"],
        **spread(times, again),
    )
    yield folded("Method, and all times", how, *tables)


def trained_in(record: Record) -> list[Row]:
    """Return the rows of all training runs that are compared with one device."""
    return [*record["strategies"]["rows"], *record["mesh"]["rows"]]


def conclusions(record: Record) -> Iterator[str]:
    """Give what the page found, a line for each question."""
    rows = {name: each["rows"] for name, each in record.items()}
    runs, worst = agreement(trained_in(record))
    yield (
        f"- **Weights.** {runs} training runs in float64 of small networks, by "
        "data, tensor, and pipeline parallelism, ZeRO 1 to 3, a parameter server, "
        "and meshes (some with sequence and expert parallelism), ended with the "
        f"weights of one device, to within {small(worst)} of a tensor's largest "
        "weight."
    )
    found = rows["bugs"]
    if (far := changes(found)) and worst:
        yield (
            f"- **Bugs.** We chose and planted {len(found)} bugs, and ordinary tests "
            f"noticed {noticed(found)}. Of these bugs, {len(far)} changed the weights "
            f"of such runs, each by at least {min(far):.2f} of a tensor's largest "
            f"weight: more than {power(min(far) / worst)} times the difference above."
        )
    found = rows["collectives"]
    yield (
        f"- **Collectives.** {total(found, 'calls'):,} calls in one process gave "
        "the results of NumPy, up to rounding in floating point. Of "
        f"{total(found, 'results'):,} results between processes, "
        f"{differing(found) or 'none'} differed from one process in even one bit."
    )
    found = rows["scripts"]
    kills = total(found, "kills")
    yield (
        f"- **Recovery.** {number(len(found)).title()} scripts were killed {kills} "
        "times in all, resumed each time, and ended with exactly the weights of an "
        "undisturbed "
        f"run. After {number(kills - total(found, 'ended'))} of the kills, other "
        "processes of the job were still running ten seconds later."
    )
    steps = [*rows["ratios"], *rows["sharded"]]
    yield f"- **Speed on CPUs.** {short_speed(steps, rows['ratios'])}"


def render(
    record: Record,
    wrong: Mapping[str, list[Row]],
    gpu: Mapping[str, Any],
    gpu_times: Sequence[Mapping[str, Any]],
) -> str:
    """Lay the page out, from a record with all tables."""
    machines = [each["machine"] for each in record.values()]
    cores = " or ".join(unique([{"cores": str(m["cores"])} for m in machines], "cores"))
    shown_by = " or ".join(unique(machines, "PyTorch"))
    minutes = sum(each["made"]["minutes"] for each in record.values())
    short = "\n".join(conclusions(record))
    top = TOP.format(
        cores=cores, minutes=minutes, conclusions=short,
        weights=largest_network(trained_in(record)),
    )  # fmt: skip
    parts = [top, GAME, *on_one_gpu(gpu, *gpu_times, shown_by)]
    for name, shown in SHOWN.items():
        found, *tables = shown.show(record[name]["rows"])
        label = "(planted-bugs)=\n" * (name == "bugs")
        parts += [f"{label}## {shown.title}", found]
        if name in wrong:
            lines = [f"- {row}" for row in wrong[name]]
            parts.append("**Wrong results:**\n\n" + "\n".join(lines))
        how = f"{shown.how} To repeat it: `make evidence ONLY={name}`."
        parts.append(folded("Method, and all rows", how, *tables))
    made = {name: record[name]["made"] for name in SHOWN}
    lines = [
        [SHOWN[name].title, m["date"], m["version"], f"`{m['sources']}`", m["minutes"],
         m["busy_before"], m["busy_after"]]
        for name, m in made.items()
    ]  # fmt: skip
    head = ["", "begun", "version", "sources (hash)", "minutes", "busy before",
            "busy after"]  # fmt: skip
    about = dict.fromkeys(
        table(["machine and packages", ""],
              ([key.replace("_", ", "), str(value)] for key, value in machine.items()))
        for machine in machines
    )  # fmt: skip
    parts += [
        WHEN.format(minutes=minutes),
        folded("When, from which sources, and on which machine",
               table(head, lines, words=4), *about,
               "*Busy* is how many cores other programs used in the five seconds "
               "before or after a table, while the command itself slept."),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"
