"""The command line: `python -m d2lmulti doctor | train | bench | simulate | ...`."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

from .. import interrupt
from ..backends import backend_name, framework_names
from ..checks import MAX_RANKS, check_count, check_number, shown
from ..comm.devices import with_place
from ..comm.group import Group, local_group
from ..errors import BackendNotInstalled, D2LMultiError, InvalidInput, WriteFailed
from ..files.atomic import check_outputs, write_json
from ..observe.timeline import Timeline, timeline
from ..processes import process_group as engine
from ..processes.process_info import launched, process_info
from ..training.history import History
from ..training.loop import train
from ..training.metrics import leader_does
from . import console
from .console import say
from .doctor import doctor
from .options import BENCHMARKS, make_parser

MOST_REPEATS = 10**6  # more is a slip of the finger


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Return 0 (good), 1 (a backend is missing), 2 (bad input), 130 (ended by Ctrl-C) or
    141 (nobody reads any more, as after `| head -1`).
    """
    commands = {"doctor": doctor, "train": _train, "bench": _bench}
    with interrupt.raised():
        try:
            with console.streams():
                arguments = make_parser().parse_args(argv)
                command = commands.get(arguments.command) or _of_cluster(arguments)
                return command(arguments)
        except D2LMultiError as error:
            console.complain(f"{_who()}error: {error}")
            return 2
        except BrokenPipeError:
            return 141
        except KeyboardInterrupt:
            console.complain(f"{_who()}interrupted")
            return 130


def _of_cluster(arguments: argparse.Namespace) -> Callable[..., int]:
    if find_spec("d2lmulti_cluster") is None:
        raise BackendNotInstalled(
            f"expected the package d2lmulti_cluster for {arguments.command}, which is "
            "not installed; install the whole project: pip install d2lmulti"
        )
    from d2lmulti_cluster.commands import COST_COMMANDS

    return COST_COMMANDS[arguments.command]


def _who() -> str:
    try:
        return f"rank {process_info().rank}: " if launched() else ""
    except InvalidInput:  # which is the error that is to be printed
        return ""


def _train(arguments: argparse.Namespace) -> int:
    if launched():  # a first message, before any tensor, goes by the default backend
        os.environ["D2LMULTI_BACKEND"] = arguments.backend
    # Started by torchrun, paddle.distributed.launch, ...: one process is one device.
    if not launched() or engine.started():
        return _train_in(engine.started(), arguments)
    status = _train_in(engine.start(), arguments)
    engine.stop()  # its threads must not outlive the interpreter: gloo's would abort
    return status


def _train_in(group: Group | None, arguments: argparse.Namespace) -> int:
    if arguments.devices is None:
        sizes = (arguments.mesh or {"data": 2}).values()
        arguments.devices = group.size if group else max(1, math.prod(sizes))
    if arguments.strategy is None:
        arguments.strategy = "mesh" if arguments.mesh else "data"
    names = ("json", "plot", "timeline", "checkpoint")
    outputs = {f"--{name}": getattr(arguments, name) for name in names}
    leader_does(group or local_group(1), lambda: _check_files(outputs))
    with timeline() if arguments.timeline else nullcontext() as recorded:
        history = _run(arguments)
    if group and not group.leader:
        return 0
    failed = _write_results(arguments, history, recorded)
    seconds = sum(epoch.seconds for epoch in history.epochs) / len(history.epochs)
    name = history.settings["backend"]
    say(
        f"test accuracy {history.accuracies[-1]:.4f}, loss {history.losses[-1]:.4f}, "
        f"{seconds:.2f} s an epoch, {history.bytes_moved / 1e6:.1f} MB moved, "
        f"{name} on {', '.join(with_place(d, name) for d in history.devices)}"
    )
    if failed:
        raise WriteFailed("; ".join(map(str, failed)))
    return 0


def _check_files(outputs: dict[str, Path | None]) -> None:
    """Refuse what could not be written, before there is work to lose."""
    check_outputs(outputs)
    picture = outputs["--plot"]
    if picture is not None and picture.suffix.lower() != ".png":
        raise InvalidInput(
            f"expected a file that ends in .png for --plot, got {shown(str(picture))}"
        )


def _write_results(
    arguments: argparse.Namespace, history: History, recorded: Timeline | None
) -> list[D2LMultiError]:
    """Write what was asked for; give the errors, so that the rest is not lost."""

    def draw(path: Path) -> None:
        # Here, because matplotlib is only sometimes needed.
        from d2lmulti_book.figures.style import learning_curve, save

        save(learning_curve({arguments.backend: history}), path)

    writers: dict[str, Callable[[Path], None]] = {
        "timeline": lambda path: write_json(path, recorded and recorded.trace()),
        "json": lambda path: write_json(path, history.as_json()),
        "plot": draw,
    }
    failed = []
    for name, write in writers.items():
        if (path := getattr(arguments, name)) is not None:
            try:
                write(path)
            except D2LMultiError as error:
                failed.append(error)
    return failed


def _run(arguments: argparse.Namespace) -> History:
    """Train with all options by their names, but for those that `main` obeys itself."""
    options = dict(vars(arguments))
    for ours in ("command", "json", "plot", "timeline"):
        del options[ours]
    size = options.pop("bucket_mb")
    if size is not None:
        check_number("--bucket-mb", size, above=0, max=2**40)
        options["bucket_bytes"] = int(size * 2**20)
    return train(options.pop("devices"), **options)


def _bench(arguments: argparse.Namespace) -> int:
    check_count("repeats", arguments.repeats, max=MOST_REPEATS)
    check_count("threads", arguments.threads, max=MAX_RANKS)
    asked = arguments.backend
    names = framework_names() if asked is None else [backend_name(asked)]
    # Frameworks read this when they are imported, so it stands before the import.
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if find_spec("benchmarks") is None:
        raise BackendNotInstalled(
            "expected the folder benchmarks of the project's source, which is not "
            "here; clone the project and run this in it"
        )
    from benchmarks import allreduce, engines, sharded, timing

    runs: dict[str, Callable[..., dict[str, timing.Timing]]] = {
        "devices": timing.bench_devices,
        "allreduce": allreduce.bench_allreduce,
        "engines": engines.bench_engines,
        "sharded": sharded.bench_sharded,
    }
    run = runs[arguments.what]
    say(
        f"{BENCHMARKS[arguments.what]}, {arguments.threads} thread(s), medians of "
        f"{arguments.repeats} repetitions or more, candidates in turn"
    )
    say(f"{'backend':8} {'candidate':44} {'ms a call':>9} {'ratio':>6}  quartiles")
    timed = 0
    for name in names:
        try:
            timings = run(name, repeats=arguments.repeats)
        except BackendNotInstalled as error:
            say(f"{name:8} missing: {error}")
            continue
        timed += 1
        for candidate, found in timings.items():
            low, high = found.ratio_quartiles
            say(f"{name:8} {candidate:44} {found.seconds * 1e3:9.4g} "
                f"{found.ratio:6.3f}  {low:.3f} to {high:.3f}")  # fmt: skip
    return 0 if timed else 1
