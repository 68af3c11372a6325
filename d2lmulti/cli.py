"""The command line: `python -m d2lmulti doctor | train | bench | simulate | ...`.

A command of another package is imported when it is called. The options of `train` are
the parameters of the function `train` and of the strategies, with the help from their
docstrings.
"""

from __future__ import annotations

import inspect
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np

from .backends import backend_name, backend_names, framework_names, get_backend
from .backends.protocol import Backend
from .checks import invalid
from .comm.devices import devices, with_place
from .comm.group import Group, local_group
from .data import DATASETS, DTYPES
from .errors import BackendNotInstalled, D2LMultiError, InvalidInput
from .files import check_outputs, write_json
from .models import MODELS
from .observe.timeline import Timeline, timeline
from .optimizers import OPTIMIZERS
from .processes import process_group
from .processes.process_group import launched, process_info
from .training import loop
from .training.history import History, on_rank_zero
from .training.strategies import STRATEGIES, option_help


@click.command()
def doctor() -> int:
    """Print what this machine has: frameworks, GPUs, the default backend."""
    click.echo(f"Python {platform.python_version()} on {platform.platform(terse=True)}")
    for line in driver_lines():
        click.echo(f"NVIDIA's driver: {line}")
    for name in backend_names():
        try:
            B = get_backend(name)
        except BackendNotInstalled as error:
            click.echo(f"{name:7} missing  {error}")
            continue
        version, count = sys.modules[name].__version__, B.gpu_count()
        places = (with_place(str(device), name) for device in devices(2, name))
        simulated = " (simulated)" * (count < 2)
        click.echo(
            f"{name:7} {version:11} GPUs: {count}; devices(2) gives "
            f"{', '.join(places)}{simulated}"
        )
        described = B.describe_gpus() if hasattr(B, "describe_gpus") else []
        for line in [*described, *trials(B)]:
            click.echo(f"        {line}")
    if line := horovod_line():
        click.echo(line)
    chosen = os.environ.get("D2LMULTI_BACKEND")
    because = "from D2LMULTI_BACKEND" if chosen else "D2LMULTI_BACKEND is not set"
    click.echo(f"default backend: {backend_name()} ({because})")
    try:
        get_backend()
    except BackendNotInstalled:
        click.echo(
            "It is missing: install it, or begin without a framework:\n"
            "python -m d2lmulti train --backend numpy"
        )
        return 1
    return 0


def driver_lines() -> list[str]:
    """List the GPUs that the driver sees, whether or not a framework can use them."""
    columns = "index,name,driver_version,memory.total,compute_cap,uuid"
    query = ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return []
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"nvidia-smi failed: {error}"]
    return (done.stdout or done.stderr or "no GPU").strip().splitlines()


def trials(B: Backend) -> list[str]:
    """Compute 1 + 1 on each GPU that the backend counts; return the outcomes."""
    lines = []
    for i in range(B.gpu_count()):
        try:
            x = B.array(np.ones(2, "float32"), f"gpu:{i}")
            outcome = "computes" if (B.numpy(x + x) == 2).all() else "computes wrongly"
        except Exception as error:  # a framework's own, of any kind
            outcome = f"fails to compute: {str(error).strip().partition(chr(10))[0]}"
        lines.append(f"gpu:{i} {outcome}")
    return lines


def horovod_line() -> str:
    """Return whether Horovod, if it is installed, was built to sum on GPUs."""
    for name in ("torch", "mxnet"):
        try:
            hvd = import_module(f"horovod.{name}")
        except Exception:  # noqa: S112 (not installed, or built for others)
            continue
        how = "by NCCL" if hvd.nccl_built() else "through the CPU"
        return f"horovod {sys.modules['horovod'].__version__:11} sums {how}"
    return ""


CHOICES: dict[str, Iterable[str]] = {
    "model": MODELS,
    "dataset": DATASETS,
    "optimizer": OPTIMIZERS,
    "dtype": DTYPES,
    "strategy": STRATEGIES,
}
KINDS = {"int": int, "float": float, "bool": bool, "str": str}
RESULTS = {
    "timeline": "write a trace of the devices' work, for Perfetto",
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
                else about.get("read", int if about else KINDS.get(kind)),
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
    if launched():  # the first message, before any tensor, uses the default backend
        os.environ["D2LMULTI_BACKEND"] = options["backend"]
    # Started by torchrun, paddle.distributed.launch, ...: one process is one device.
    if not launched() or process_group.started():
        return train_in(process_group.started(), options)
    status = train_in(process_group.start(), options)
    process_group.stop()  # otherwise gloo's threads abort when the interpreter ends
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
    """Raise, before the run begins, for a file that could not be written."""
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


# Command -> the module with a `click.Command` of this name.
COMMANDS = {
    "doctor": "d2lmulti.cli",
    "train": "d2lmulti.cli",
    "bench": "benchmarks.command",
    "simulate": "d2lmulti_cluster.commands",
    "plan": "d2lmulti_cluster.commands",
    "validate": "d2lmulti_cluster.commands",
    "gym": "d2lmulti_book.gym.command",
}


class Commands(click.Group):
    """The commands whose packages are installed."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Name the commands that can be imported."""
        return [c for c, home in COMMANDS.items() if find_spec(home.partition(".")[0])]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        package = COMMANDS[name].partition(".")[0]
        if find_spec(package) is None:
            raise BackendNotInstalled(
                f"{name} needs the package {package}, which is not installed here; "
                "clone the project and run this in its folder"
            )
        return getattr(import_module(COMMANDS[name]), name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Return 0 (success), 1 (a backend is missing), 2 (bad input), 130 (Ctrl-C), or
    141 (the reader of the output has closed it, as in `| head -1`).
    """
    for number in (0, 1, 2):  # a new file would get the number of a closed stream
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    words = [*(sys.argv[1:] if argv is None else argv)]
    group = Commands(help="Multi-GPU training from scratch.", no_args_is_help=False)
    try:
        with group.make_context("python -m d2lmulti", words) as context:
            return group.invoke(context) or 0
    except click.exceptions.Exit as end:  # of --help
        return end.exit_code
    except click.ClickException as error:
        message = " ".join(error.format_message().split())
        return _failed(f"error: {message} See --help.", 2)
    except D2LMultiError as error:
        return _failed(f"error: {error}", 2)
    except BrokenPipeError:
        # Python would try to flush the rest again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return _failed("interrupted", 130)


def _failed(message: str, status: int) -> int:
    """Print why a command failed, and on which rank; return the status."""
    rank = ""
    if launched():
        with suppress(InvalidInput):  # which is the error to print
            rank = f"rank {process_info().rank}: "
    click.echo(rank + message, err=True)
    return status
