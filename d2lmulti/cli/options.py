"""The options of the command line. What they may be, the functions themselves say."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from ..backends import framework_names
from ..checks import shown
from ..data.datasets import DATASETS
from ..models import MODELS
from ..optimizers import OPTIMIZERS
from ..parallel.sharded import PRECISIONS
from ..plans.allreduce import ALLREDUCE
from ..plans.schedules import SCHEDULES
from ..processes.process_info import launched, process_info
from ..training.arguments import DTYPES
from ..training.strategies import STRATEGIES
from .console import complain, say

T = TypeVar("T")
BENCHMARKS = {
    "devices": "LeNet step, whole batch 256",
    "allreduce": "ring all-reduce of 16 MiB on 4 simulated devices",
    "sharded": "ZeRO 1, 2, 3 on two CPU processes beside data parallelism, and FSDP",
    "engines": "one worker against two processes on two CPU cores, ratios of times",
}


class _Parser(argparse.ArgumentParser):
    """One that says so when its help cannot be written."""

    def _print_message(self, message: str, file: Any = None) -> None:
        tell = complain if file is sys.stderr else say
        tell(message.rstrip("\n"))


class _WithDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Help that ends with the default, but for options that are off or say it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands; the one that is chosen is its `command`."""
    parser = _Parser(
        prog="python -m d2lmulti", description="Multi-GPU training from scratch."
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    commands.add_parser("doctor", help="what is installed, which devices")

    run = commands.add_parser(
        "train",
        help="train, the work split over devices",
        formatter_class=_WithDefaults,
    )
    option, count = run.add_argument, partial(run.add_argument, type=whole)
    backend = os.environ.get("D2LMULTI_BACKEND") or _usual_backend()
    option("--backend", default=backend, help="torch, mxnet, paddle, numpy")
    count("--devices", help="how many to use (default: 2; in a launch, one a process)")
    option("--model", default="lenet", choices=MODELS, help="network")
    option("--dataset", default="digits", choices=DATASETS, help="data")
    count("--batch-size", default=128, help="the whole batch")
    option("--lr", type=_number, default=0.05, help="learning rate")
    count("--warmup", metavar="STEPS", help="raise the rate to --lr step by step")
    option("--optimizer", default="sgd", choices=OPTIMIZERS)
    option("--momentum", type=_number, help="of sgd (default: 0.9)")
    count("--epochs", default=10, help="passes over the data")
    count("--seed", default=0, help="of weights and shuffling")
    option("--dtype", default="float32", choices=DTYPES, help="of weights")
    option(
        "--strategy",
        choices=STRATEGIES,
        help="what is split: the batch (data; sharded: and what the optimizer keeps), "
        "every layer, the model into stages, or all of these on a mesh (default: data; "
        "with --mesh, mesh)",
    )
    option(
        "--algorithm",
        choices=[*ALLREDUCE, "auto", "native"],
        help="of the all-reduce, with data or layer (default: star; native: the "
        "engine's own)",
    )
    option(
        "--bucket-mb",
        type=_number,
        help="sum the gradients in buckets of this size, with data",
    )
    count(
        "--accumulate",
        metavar="PARTS",
        help="add up the gradients of so many parts of a batch before its one step, "
        "with data or sharded (default: 1)",
    )
    option(
        "--schedule",
        choices=SCHEDULES,
        help="order of the stages' work, with model (default: 1f1b)",
    )
    count("--micro-batches", help="parts a batch is cut into, with model (default: 4)")
    count(
        "--stages",
        help="stages of the model, a multiple of the devices, with model (default: one "
        "a device, two under zb_v)",
    )
    count(
        "--zero",
        help="what is cut, with sharded: 1 the optimizer's state, 2 also the "
        "gradients, 3 also the weights (default: 3); on a mesh 0 or 1 (default: 0)",
    )
    option(
        "--precision",
        choices=PRECISIONS,
        help="compute and send in 16 bits, update in 32, with sharded (default: 32)",
    )
    option(
        "--mesh",
        type=_sizes,
        metavar="AXIS=SIZE,...",
        help="all ways at once: sizes of the axes data, tensor, pipeline, sequence "
        "(the tokens of an example) and expert (of a mixture)",
    )
    option(
        "--checkpoint",
        type=Path,
        metavar="FILE.npz",
        help="save the run after every epoch; a file that is there needs --resume",
    )
    count(
        "--save-every",
        metavar="STEPS",
        help="save also after every so many steps of an epoch",
    )
    option(
        "--resume", action="store_true", help="go on from the checkpoint if it is there"
    )
    results = run.add_argument_group(
        "results", "Files that are there are replaced; read-only ones are refused."
    )
    file = partial(results.add_argument, type=Path)
    file("--json", metavar="FILE", help="write the history")
    file("--plot", metavar="FILE.png", help="draw the history")
    file(
        "--timeline",
        metavar="FILE.json",
        help="write who did what when, to open in Perfetto",
    )

    bench = commands.add_parser("bench", help="time ours beside the peer or the limit")
    bench.add_argument("what", choices=BENCHMARKS)
    bench.add_argument("--backend", help="only this one (default: all frameworks)")
    bench.add_argument("--repeats", type=whole, default=15)
    bench.add_argument("--threads", type=whole, default=1, help="of each framework")
    parts = {"d2lmulti_cluster": ("simulate", "plan", "validate")}
    if find_spec("d2lmulti_cluster"):
        from d2lmulti_cluster.commands import add_commands

        add_commands(commands, _WithDefaults, whole)
    else:
        for package, names in parts.items():
            for name in names:
                missing = commands.add_parser(name, help=f"needs the package {package}")
                missing.add_argument("rest", nargs=argparse.REMAINDER)
    return parser


def _usual_backend() -> str:
    """The engine of a framework's own launcher says which framework is meant."""
    name = process_info().engine if launched() else "torch"
    return name if name in framework_names() else "torch"


def _reader(kind: Callable[[str], T], what: str) -> Callable[[str], T]:
    def read(text: str) -> T:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"expected {what}, got {shown(text)}"
            ) from None

    return read


whole, _number = _reader(int, "a whole number"), _reader(float, "a number")


def _sizes(text: str) -> dict[str, int]:
    """Read data=2,tensor=2; which axes and sizes can be, the mesh says."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, equals, size = part.strip().partition("=")
        if not equals or not size.isdecimal() or len(size) > 9 or axis in sizes:
            raise argparse.ArgumentTypeError(
                "expected sizes of different axes, such as data=2,tensor=2, got "
                f"{shown(text)}"
            )
        sizes[axis] = int(size)
    return sizes
