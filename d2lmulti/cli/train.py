"""`train`: its options are the parameters of `train` and the strategies' own.

An option and its help are written once, in the docstring of `train` or the strategy.
"""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from ..backends import framework_names
from ..checks import invalid
from ..comm.devices import with_place
from ..comm.group import Group, local_group
from ..data.datasets import DATASETS
from ..errors import D2LMultiError
from ..files import check_outputs, write_json
from ..models import MODELS
from ..observe.timeline import Timeline, timeline
from ..optimizers import OPTIMIZERS
from ..processes import process_group
from ..processes.process_info import launched, process_info
from ..training import loop
from ..training.arguments import DTYPES
from ..training.history import History
from ..training.metrics import on_rank_zero
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
    "timeline": "write who did what when, to open in Perfetto",
    "json": "write the history as JSON",
    "plot": "draw the history, as PNG",
}


def usual_backend() -> str:
    """Return the backend of the environment, of the launcher, or torch."""
    name = process_info().engine if launched() else ""
    usual = name if name in framework_names() else "torch"
    return os.environ.get("D2LMULTI_BACKEND") or usual


def train_options() -> list[click.Parameter]:
    """Make the options from signature and docstring of `train` and the strategies."""
    texts = re.findall(r":param (\w+): (.+(?:\n {8}.+)*)", loop.train.__doc__ or "")
    help = {name: " ".join(text.split()) for name, text in texts} | option_help()
    help["num_gpus"] += " (default: 2; in a launch, one per process)"
    help["strategy"] += " (default: data; with --mesh, mesh)"
    defaults = {"num_gpus": None, "strategy": None, "backend": usual_backend}
    shown = {"backend": "D2LMULTI_BACKEND, or torch"}
    own = {f.name: f.metadata for of in STRATEGIES.values() for f in fields(of)}
    options: list[click.Parameter] = []
    for name, parameter in inspect.signature(loop.train).parameters.items():
        about: Any = own.get(name, {})
        choices = about.get("choices") or CHOICES.get(name)
        kind = str(parameter.annotation).partition(" | ")[0]
        if name == "devices":  # by name: in Python only
            continue
        flag = "devices" if name == "num_gpus" else name.replace("_", "-")
        options.append(
            click.Option(
                [about.get("flag", f"--{flag}"), name],
                type=click.Choice([*choices])
                if choices
                else about.get("read", KINDS.get(kind)),
                default=defaults.get(name, parameter.default),
                is_flag=kind == "bool" or None,
                metavar=about.get("metavar"),
                show_default=shown.get(name, name not in own),
                help=help[name],
            )
        )
    for name, text in RESULTS.items():
        path = click.Path(path_type=Path)
        options.append(click.Option([f"--{name}"], type=path, help=text))
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
    results = {name: options.pop(name) for name in RESULTS}
    files = {**results, "checkpoint": options["checkpoint"]}
    outputs = {f"--{name}": path for name, path in files.items()}
    on_rank_zero(group or local_group(1), lambda: check_results(outputs))
    with timeline() if results["timeline"] else nullcontext() as recorded:
        history = loop.train(**options)
    if group and not group.leader:
        return 0
    seconds = sum(epoch.seconds for epoch in history.epochs) / len(history.epochs)
    name = history.settings["backend"]
    click.echo(
        f"test accuracy {history.accuracies[-1]:.4f}, loss {history.losses[-1]:.4f}, "
        f"{seconds:.2f} s an epoch, {history.bytes_moved / 1e6:.1f} MB moved, "
        f"{name} on {', '.join(with_place(d, name) for d in history.devices)}"
    )
    failed = 0
    for result, path in results.items():
        try:
            if path is not None:
                write_result(result, path, history, recorded)
        except D2LMultiError as error:  # the other results are still written
            click.echo(f"error: {error}", err=True)
            failed = 2
    return failed


def check_results(outputs: dict[str, Path | None]) -> None:
    """Raise, before there is work to lose, for what could not be written."""
    check_outputs(outputs)
    picture = outputs["--plot"]
    if picture is not None and picture.suffix.lower() != ".png":
        raise invalid("a file that ends in .png for --plot", str(picture))


def write_result(
    result: str, path: Path, history: History, recorded: Timeline | None
) -> None:
    """Write one of `RESULTS`."""
    if result == "timeline" and recorded:
        write_json(path, recorded.trace())
    elif result == "json":
        write_json(path, history.as_json())
    else:
        from d2lmulti_book.figures.style import learning_curve, save

        save(learning_curve({history.settings["backend"]: history}), path)


train = click.Command("train", callback=run, params=train_options(), help=run.__doc__)
