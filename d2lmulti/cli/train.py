"""`train`: its options are the parameters of `train` and the strategies' own.

An option and its help are written once, in the docstring of `train` or the strategy.
"""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from ..backends import framework_names
from ..comm.devices import with_place
from ..comm.group import Group, local_group
from ..data.datasets import DATASETS
from ..errors import D2LMultiError, WriteFailed
from ..files.atomic import check_outputs, write_json
from ..models import MODELS
from ..observe.timeline import timeline
from ..optimizers import OPTIMIZERS
from ..processes import process_group
from ..processes.process_info import launched, process_info
from ..training import loop
from ..training.arguments import DTYPES
from ..training.metrics import leader_does
from ..training.strategies import STRATEGIES, option_help

CHOICES: dict[str, Iterable[str]] = {
    "model": MODELS,
    "dataset": DATASETS,
    "optimizer": OPTIMIZERS,
    "dtype": DTYPES,
    "strategy": STRATEGIES,
}
KINDS = {"int": int, "float": float, "bool": bool, "str": str}
RESULTS = {
    "json": "write the history as JSON",
    "plot": "draw the history, as PNG",
    "timeline": "write who did what when, to open in Perfetto",
}


def usual_backend() -> str:
    """Return the backend of the environment, of the launcher, or torch."""
    name = process_info().engine if launched() else ""
    return os.environ.get("D2LMULTI_BACKEND") or (
        name if name in framework_names() else "torch"
    )


def train_options() -> list[click.Parameter]:
    """Make the options from signature and docstring of `train` and the strategies."""
    text = re.findall(r":param (\w+): (.+(?:\n {8}.+)*)", loop.train.__doc__ or "")
    help = {name: " ".join(words.split()) for name, words in text} | option_help()
    help["num_gpus"] += " (default: 2; in a launch, one per process)"
    help["strategy"] += " (default: data; with --mesh, mesh)"
    changed = {"num_gpus": None, "strategy": None, "backend": usual_backend}
    own = {f.name: f.metadata for of in STRATEGIES.values() for f in fields(of)}
    options: list[click.Parameter] = []
    for name, parameter in inspect.signature(loop.train).parameters.items():
        if name == "devices":
            continue
        about: Any = own.get(name, {})
        choices = about.get("choices") or CHOICES.get(name)
        kind = str(parameter.annotation).partition(" | ")[0]
        flag = "devices" if name == "num_gpus" else name.replace("_", "-")
        options.append(
            click.Option(
                [about.get("flag", f"--{flag}"), name],
                type=click.Choice(list(choices)) if choices
                else about.get("read") or KINDS[kind],
                default=changed.get(name, parameter.default),
                is_flag=kind == "bool" or None,
                metavar=about.get("metavar"),
                show_default=name not in own,
                help=help[name],
            )
        )  # fmt: skip
    for name, words in RESULTS.items():
        path = click.Path(path_type=Path)
        options.append(click.Option([f"--{name}"], type=path, help=words))
    return options


def run(**options: Any) -> int:
    """Train, the work split over devices."""
    if launched():  # a first message, before any tensor, goes by the default backend
        os.environ["D2LMULTI_BACKEND"] = options["backend"]
    # Started by torchrun, paddle.distributed.launch, ...: one process is one device.
    if not launched() or process_group.started():
        return train_in(process_group.started(), options)
    status = train_in(process_group.start(), options)
    process_group.stop()  # gloo's threads would abort at the interpreter's end
    return status


def train_in(group: Group | None, options: dict[str, Any]) -> int:
    """Train in a group of processes, or in this one alone, and write the results."""
    if options["num_gpus"] is None:
        sizes = (options["mesh"] or {"data": 2}).values()
        options["num_gpus"] = group.size if group else math.prod(sizes)
    if options["strategy"] is None:
        options["strategy"] = "mesh" if options["mesh"] else "data"
    files = {name: options.pop(name) for name in RESULTS}
    outputs = {**files, "checkpoint": options["checkpoint"]}
    leader_does(
        group or local_group(1),
        lambda: check_outputs({f"--{name}": path for name, path in outputs.items()}),
    )
    with timeline() if files["timeline"] else nullcontext() as recorded:
        history = loop.train(**options)
    if group and not group.leader:
        return 0

    def draw(path: Path) -> None:
        from d2lmulti_book.figures.style import learning_curve, save

        save(learning_curve({options["backend"]: history}), path)

    writers: dict[str, Callable[[Path], None]] = {
        "timeline": lambda path: write_json(path, recorded and recorded.trace()),
        "json": lambda path: write_json(path, history.as_json()),
        "plot": draw,
    }
    failed = []
    for name, write in writers.items():
        try:
            if files[name] is not None:
                write(files[name])
        except D2LMultiError as error:  # the other results are still written
            failed.append(str(error))
    seconds = sum(epoch.seconds for epoch in history.epochs) / len(history.epochs)
    name = history.settings["backend"]
    click.echo(
        f"test accuracy {history.accuracies[-1]:.4f}, loss {history.losses[-1]:.4f}, "
        f"{seconds:.2f} s an epoch, {history.bytes_moved / 1e6:.1f} MB moved, "
        f"{name} on {', '.join(with_place(d, name) for d in history.devices)}"
    )
    if failed:
        raise WriteFailed("; ".join(failed))
    return 0


train = click.Command("train", callback=run, params=train_options(), help=run.__doc__)
