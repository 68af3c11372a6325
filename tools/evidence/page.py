"""The page: Markdown from a record, and no word about results that is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .markdown import listed, table, together

HEAD = """\
# Evidence

The book says that what many devices compute is what one device would have computed,
that a rank that dies is named, that nonsense is refused. Here is how often that was
tried, and what came out. One command wrote this page, from runs of the programs
themselves. No number was typed by hand, and a table in which anything came out wrong is
not written:

```bash
make evidence               # all of it, on a machine that does nothing else
make evidence ONLY=ratios   # one table again; the others stay as they are
```

What was measured is also in `chapters/measured/evidence.json`, number by number.
"""

# What was done, in one sentence, and what else repeats it.
DONE = {
    "strategies": (
        "Small networks took 12 steps of SGD with momentum 0.9 in float64, split in "
        "every way that the library has, and the weights on all devices were compared "
        "with those of one device: the largest difference, over the largest weight of "
        "the same tensor, and in brackets how many world sizes were tried, of 2, 3 and "
        "4 in one process, 2 and 3 between processes. The last batch of each epoch has "
        "7 examples, which none of them divides. A dash: does not exist, or is refused "
        "as the notes say.",
        "tests/backends/test_strategies.py tests/processes/test_engines.py",
    ),
    "mesh": (
        "The same 12 steps, with the ranks on a mesh of two or three axes of two ranks "
        "each, compared in the same way; the meshes of eight ranks were tried in one "
        "process alone.",
        "tests/backends tests/processes/test_engines.py -k mesh",
    ),
    "collectives": (
        "Every collective was called on vectors of all kinds and its results compared "
        "with NumPy's, or with those of one process.",
        "tests/backends/test_collectives.py tests/processes/test_engines.py",
    ),
    "bugs": (
        "Each bug was planted in a copy of the library, where the ordinary tests of "
        "training then ran with PyTorch until the first of them failed.",
        "tests/bugs",
    ),
    "faults": (
        "In the middle of a run something happened to one of two ranks, by the "
        "operating system's own means.",
        "tests/processes/test_failing.py tests/processes/test_faults.py",
    ),
    "scripts": (
        "Each script of {doc}`scripts` ran on as many machines as the table says (two "
        "are two network namespaces of this one), in float64, until a launcher or a "
        "worker, chosen at random as the moment was, was killed with `SIGKILL`. What "
        "was left had ten seconds to end by itself, was ended then, and the run was "
        "started again, which went on from its checkpoint. The weights in the end had "
        "the bits of a run that nobody disturbed, and twelve digits in common with "
        "those of the same script on one device and of the script for one device. "
        "TensorFlow's has no launcher.",
        "tests/processes/test_examples.py tests/processes/test_elastic.py",
    ),
    "nonsense": (
        "Every parameter of every public function and every option of the command got "
        "values that make no sense, and files were damaged at random, by seed: all had "
        "to be refused by an error of the library's own, or, a file, to do no harm.",
        "tests/backends/test_bad_values.py tests/pure/test_fuzz_files.py",
    ),
    "ratios": (
        "All candidates took turns in one run, so that a change of the machine's speed "
        "hits all alike; a number is the median of the ratios turn by turn, below 1 "
        "where ours is quicker. On a machine that is busy with other things such "
        "ratios scatter, most of all between processes: see the load above.",
        "",
    ),
    "sharded": (
        "A step of a perceptron with 13 MB of weights, 512 examples, by two processes "
        "on a core of their own; all candidates took turns in one run, and a number is "
        "the median of the ratios turn by turn. Data parallelism sends its gradients "
        "in buckets; ours computes a layer's forward pass twice under ZeRO 3, as "
        "`fully_shard` does with activation checkpointing (the last column).",
        "",
    ),
}


def render(record: Mapping[str, Any], tables: Mapping[str, ModuleType]) -> str:
    """Lay the page out; say which of all tables the record does not have."""
    missing = [module.TITLE for name, module in tables.items() if name not in record]
    tables = {name: module for name, module in tables.items() if name in record}
    parts = [HEAD.strip(), *_machines(record, tables)]
    if missing:
        parts.append(f"Not made yet, and not shown: {'; '.join(missing)}.")
    for name, module in tables.items():
        sentence, tests = DONE[name]
        again = f"Again: `make evidence ONLY={name}`"
        if tests:
            again += f"; every `.ci/run` does as much with `pytest {tests}`"
        elif name == "ratios":
            again += (
                "; `python -m d2lmulti bench engines` and `bench allreduce` print it"
            )
        elif name == "sharded":
            again += "; `python -m d2lmulti bench sharded` prints it"
        parts += [f"## {module.TITLE}", f"{sentence} {again}."]
        parts += [module.show(record[name]["rows"])]
    return "\n\n".join(parts) + "\n"


def _machines(record: Mapping[str, Any], tables: Mapping[str, ModuleType]) -> list[str]:
    """Tell where and when: a table of the tables, and the machine or machines."""
    lines: list[list[str]] = []
    for name, module in tables.items():
        made = record[name]["made"]
        lines.append([
            module.TITLE, together(*made["date"].split()),
            f"{made['version']} ({made['commit']})",
            f"{made['minutes']:.1f}", f"{made['load_before']:.2f}",
            f"{made['load_after']:.2f}",
        ])  # fmt: skip
    head = ["", "begun", "version (commit)", "minutes", "load before", "load after"]
    where: dict[str, list[str]] = {}
    for name in tables:
        where.setdefault(_about(record[name]["machine"]), []).append(name)
    parts = ["## When and where", table(head, lines, words=3)]
    for machine, names in where.items():
        which = "All tables" if len(where) == 1 else listed(names).capitalize()
        parts.append(f"{which}: {machine}.")
    parts.append(
        "The load is the system's average over a minute: how many processes wanted a "
        "core. Before a table it tells what else the machine was doing."
    )
    return parts


def _about(machine: Mapping[str, Any]) -> str:
    first = ("processor", "cores", "memory_GiB", "system")
    software = [f"{k} {v}" for k, v in machine.items() if k not in first]
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_GiB']} "
        f"GiB of memory, {machine['system']}, {', '.join(software)}"
    )
