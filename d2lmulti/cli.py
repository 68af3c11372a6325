"""The command line: `python -m d2lmulti doctor | train | bench`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from .backends import backend_names, framework_names, get_backend
from .cluster.timeline import Timeline, timeline
from .comm import engine
from .comm.devices import devices
from .comm.group import local_group
from .comm.place import find_place, launched
from .errors import BackendNotInstalled, D2LMultiError, InvalidInput, WriteFailed
from .models import MODELS
from .optimizers import OPTIMIZERS
from .plans.allreduce import ALLREDUCE
from .plans.schedules import SCHEDULES
from .training.datasets import DATASETS
from .training.files import check_outputs, write_json
from .training.history import History
from .training.loop import train
from .training.strategies import STRATEGIES
from .training.together import leader_does

BENCHMARKS = {
    "devices": "LeNet step, whole batch 256",
    "allreduce": "ring all-reduce of 16 MiB on 4 simulated devices",
    "engines": "one worker against two processes on two cores, ratios of times",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 (good), 1 (a backend is missing) or 2 (bad input)."""
    try:
        arguments = _parser().parse_args(argv)
        return int(arguments.run(arguments))
    except D2LMultiError as error:
        print(f"{_who()}error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m d2lmulti", description="Multi-GPU training from scratch."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="what is installed, which devices")
    doctor.set_defaults(run=_doctor)

    run = commands.add_parser(
        "train",
        help="train, the work split over devices",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    run.set_defaults(run=_train)
    backend = os.environ.get("D2LMULTI_BACKEND") or _usual_backend()
    run.add_argument("--backend", default=backend, help="torch, mxnet, paddle, numpy")
    run.add_argument(
        "--devices", type=int, help="how many devices (2; in a launch, one a process)"
    )
    run.add_argument("--model", default="lenet", choices=MODELS, help="network")
    run.add_argument("--dataset", default="digits", choices=DATASETS, help="data")
    run.add_argument("--batch-size", type=int, default=128, help="the whole batch")
    run.add_argument("--lr", type=float, default=0.05, help="learning rate")
    run.add_argument("--optimizer", default="sgd", choices=OPTIMIZERS)
    run.add_argument("--momentum", type=float, default=0.9, help="of SGD")
    run.add_argument("--epochs", type=int, default=10, help="passes over the data")
    run.add_argument("--seed", type=int, default=0, help="of weights and shuffling")
    dtypes = ("float32", "float64")
    run.add_argument("--dtype", default="float32", choices=dtypes, help="of weights")
    run.add_argument(
        "--strategy",
        default="data",
        choices=STRATEGIES,
        help="what is split: the data, the layers or the model, into stages",
    )
    run.add_argument(
        "--algorithm",
        choices=[*ALLREDUCE, "auto", "native"],
        help="of the all-reduce (data, layer; star if not given; native: the engine's)",
    )
    run.add_argument(
        "--bucket-mb", type=float, help="sum gradients in buckets of this size (data)"
    )
    run.add_argument(
        "--schedule", choices=SCHEDULES, help="of the stages (model; 1f1b if not given)"
    )
    run.add_argument(
        "--micro-batches", type=int, help="a batch is cut into (model; 4 if not given)"
    )
    run.add_argument(
        "--stages",
        type=int,
        help="a multiple of the devices (model; one a device, two under zb_v)",
    )
    run.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FILE.npz",
        help="save the run after epochs; a file that is there needs --resume",
    )
    run.add_argument(
        "--save-every", type=int, metavar="STEPS", help="and within them, this often"
    )
    run.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint if it is there"
    )
    results = run.add_argument_group(
        "results", "Files that are there are replaced; read-only ones are refused."
    )
    results.add_argument("--json", type=Path, metavar="FILE", help="write the history")
    results.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the history"
    )
    results.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE.json",
        help="write who did what when, to open in Perfetto",
    )

    bench = commands.add_parser("bench", help="time ours beside the peer or the limit")
    bench.set_defaults(run=_bench)
    bench.add_argument("what", choices=BENCHMARKS)
    bench.add_argument("--backend", help="only this one (default: all frameworks)")
    bench.add_argument("--repeats", type=int, default=15)
    bench.add_argument("--threads", type=int, default=1, help="of each framework")
    return parser


def _who() -> str:
    try:
        return f"rank {find_place().rank}: " if launched() else ""
    except InvalidInput:  # which is the error that is to be printed
        return ""


def _usual_backend() -> str:
    """The engine of a framework's own launcher says which framework is meant."""
    name = find_place().engine if launched() else "torch"
    return name if name in framework_names() else "torch"


def _doctor(_: argparse.Namespace) -> int:
    print(f"Python {platform.python_version()} on {platform.platform(terse=True)}")
    for name in backend_names():
        try:
            B = get_backend(name)
        except BackendNotInstalled as error:
            print(f"{name:7} missing  {error}")
            continue
        version = sys.modules[name].__version__
        two = ", ".join(map(str, devices(2, name)))
        print(
            f"{name:7} {version:11} GPUs: {B.gpu_count()}; devices(2) gives {two}"
            f"{' (simulated)' if B.gpu_count() < 2 else ''}"
        )
    asked = os.environ.get("D2LMULTI_BACKEND")
    because = "from D2LMULTI_BACKEND" if asked else "D2LMULTI_BACKEND is not set"
    print(f"default backend: {asked or 'torch'} ({because})")
    try:
        get_backend()
    except BackendNotInstalled:
        print(
            "It is missing: install it, or begin without a framework:\n"
            "python -m d2lmulti train --backend numpy"
        )
        return 1
    return 0


def _train(arguments: argparse.Namespace) -> int:
    # Started by torchrun, paddle.distributed.launch, ...: one process is one device.
    group = engine.start() if launched() and not engine.started() else engine.started()
    if arguments.devices is None:
        arguments.devices = group.size if group else 2
    names = ("json", "plot", "timeline", "checkpoint")
    outputs = {f"--{name}": getattr(arguments, name) for name in names}
    leader_does(group or local_group(1), lambda: check_outputs(outputs))
    with timeline() if arguments.timeline else nullcontext() as recorded:
        history = _run(arguments)
    if group and not group.leader:
        return 0
    failed = _write_results(arguments, history, recorded)
    seconds = sum(epoch.seconds for epoch in history.epochs) / len(history.epochs)
    print(
        f"test accuracy {history.accuracies[-1]:.4f}, loss {history.losses[-1]:.4f}, "
        f"{seconds:.2f} s an epoch, {history.bytes_moved / 1e6:.1f} MB moved, "
        f"{history.settings['backend']} on {', '.join(history.devices)}"
    )
    if failed:
        raise WriteFailed("; ".join(map(str, failed)))
    return 0


def _write_results(
    arguments: argparse.Namespace, history: History, recorded: Timeline | None
) -> list[D2LMultiError]:
    """Write what was asked for; give the errors, so that the rest is not lost."""
    failed: list[D2LMultiError] = []

    def attempt(path: Path | None, write: Callable[[Path], None]) -> None:
        if path is not None:
            try:
                write(path)
            except D2LMultiError as error:
                failed.append(error)

    def draw(path: Path) -> None:
        from .plot import learning_curve, save  # matplotlib only where it is needed

        save(learning_curve({arguments.backend: history}), path)

    if recorded:
        attempt(arguments.timeline, lambda path: write_json(path, recorded.trace()))
    attempt(arguments.json, lambda path: write_json(path, history.as_json()))
    attempt(arguments.plot, draw)
    return failed


def _run(arguments: argparse.Namespace) -> History:
    return train(
        arguments.devices,
        arguments.batch_size,
        arguments.lr,
        momentum=arguments.momentum,
        epochs=arguments.epochs,
        seed=arguments.seed,
        dtype=arguments.dtype,
        dataset=arguments.dataset,
        model=arguments.model,
        optimizer=arguments.optimizer,
        strategy=arguments.strategy,
        algorithm=arguments.algorithm,
        bucket_bytes=(
            None if arguments.bucket_mb is None else int(arguments.bucket_mb * 2**20)
        ),
        schedule=arguments.schedule,
        micro_batches=arguments.micro_batches,
        stages=arguments.stages,
        checkpoint=arguments.checkpoint,
        save_every=arguments.save_every,
        resume=arguments.resume,
        backend=arguments.backend,
    )


def _bench(arguments: argparse.Namespace) -> int:
    for option in ("repeats", "threads"):
        if (value := getattr(arguments, option)) < 1:
            raise InvalidInput(f"expected --{option} of at least 1, got {value}")
    # Frameworks read this when they are imported, so it stands before the import.
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    from .bench import Timing, bench_devices
    from .bench_allreduce import bench_allreduce
    from .bench_engines import bench_engines

    runs: dict[str, Callable[..., dict[str, Timing]]] = {
        "devices": bench_devices,
        "allreduce": bench_allreduce,
        "engines": bench_engines,
    }
    run = runs[arguments.what]
    names = [arguments.backend] if arguments.backend else framework_names()
    print(
        f"{BENCHMARKS[arguments.what]}, {arguments.threads} thread(s), median of "
        f"{arguments.repeats}, candidates in turn"
    )
    print(f"{'backend':8} {'candidate':44} {'ms':>8} {'ratio':>6}")
    timed = 0
    for name in names:
        try:
            timings = run(name, repeats=arguments.repeats)
        except BackendNotInstalled as error:
            print(f"{name:8} missing: {error}")
            continue
        timed += 1
        for candidate, (seconds, ratio) in timings.items():
            print(f"{name:8} {candidate:44} {seconds * 1e3:8.1f} {ratio:6.3f}")
    return 0 if timed else 1
