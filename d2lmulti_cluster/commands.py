"""The commands about machines that are not there: simulate, plan, validate."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from d2lmulti.checks import MAX_RANKS, check_count
from d2lmulti.cli.console import say
from d2lmulti.errors import InvalidInput
from d2lmulti.files.atomic import check_outputs, write_json
from d2lmulti.plans.allreduce import ALLREDUCE

from .comparison import Compared
from .networks import ConvNet, get_network, network_names
from .planner import Candidate, plan_data_parallel, plan_layouts
from .presets import cluster_names, get_cluster
from .simulate import (
    A_SECOND,
    MANY,
    PLANS,
    count_messages,
    formula_or_none,
    parse_bytes,
    simulate,
)
from .validation import validate

T = TypeVar("T")
Command = Callable[[argparse.Namespace], T]
SHOWN = 12  # layouts that are printed; a file has them all


def _simulate(arguments: argparse.Namespace) -> object:
    if arguments.algorithm and arguments.collective != "allreduce":
        raise InvalidInput(
            f"expected --algorithm with allreduce only, got {arguments.collective}; "
            "leave it out"
        )
    nbytes = parse_bytes(arguments.bytes)
    cluster, algorithm = get_cluster(arguments.cluster), arguments.algorithm or "ring"
    check_count("--ranks", arguments.ranks, max=MAX_RANKS)
    asked = (arguments.collective, arguments.ranks)
    messages = count_messages(*asked, cluster, algorithm)
    if messages > MANY:
        formula = formula_or_none(*asked, nbytes, cluster, algorithm)
        known = "" if formula is None else f"; the formula says {_seconds(formula)}"
        say(f"playing {messages:,} messages: {_roughly(messages / A_SECOND)}{known}")
    found = simulate(*asked, nbytes, cluster, algorithm)
    say(
        f"{found.collective} by {found.algorithm}, {found.ranks:,} ranks on "
        f"{found.cluster}, {found.nbytes:,} bytes each"
    )
    say(f"clock    {_seconds(found.seconds)}")
    if found.formula_seconds is None:
        say("formula  none: a node is not full")
    else:
        say(f"formula  {_seconds(found.formula_seconds)}")
    if found.bus_bandwidth is not None:
        say(f"busbw    {found.bus_bandwidth / 1e9:.2f} GB/s")
    say(
        f"moved    {found.bytes_moved:,} bytes in {found.messages:,} messages, "
        f"{found.rounds:,} rounds; played in {found.played_in:.2f} s"
    )
    return vars(found)


def _plan(arguments: argparse.Namespace) -> object:
    check_count("--gpus", arguments.gpus)
    if arguments.batch is not None:
        check_count("--batch", arguments.batch)
    network, cluster = get_network(arguments.model), get_cluster(arguments.cluster)
    if isinstance(network, ConvNet):
        steps = plan_data_parallel(network, cluster, arguments.gpus, arguments.batch)
        one = steps[0].images_per_second / steps[0].images
        say(f"{network.name} on {cluster.name}, data parallelism")
        say(f"{'batch':>8} {'images/s':>12} {'ms a step':>10} {'efficiency':>10}")
        for step in steps:
            share = step.images_per_second / step.images / one
            say(
                f"{step.images:8,} {step.images_per_second:12,.1f} "
                f"{step.seconds * 1e3:10.2f} {share:10.1%}"
            )
        found = [vars(s) | {"images_per_second": s.images_per_second} for s in steps]
        return {"model": network.name, "cluster": cluster.name, "steps": found}
    ranked = plan_layouts(network, cluster, arguments.gpus, arguments.batch)
    fit = [c for c in ranked if c.fits]
    say(
        f"{network.name} on {arguments.gpus} GPUs of {cluster.name}, "
        f"{ranked[0].layout.batch} sequences a step: {len(ranked)} layouts, "
        f"{len(ranked) - len(fit)} do not fit in {cluster.device.memory / 1e9:.0f} GB"
    )
    say(f"{'tokens/s/GPU':>12} {'MFU':>6} {'GB':>6}  layout")
    for candidate in fit[:SHOWN]:
        say(_line(candidate))
    if not fit:
        say("none fits; the smallest:")
        say(_line(min(ranked, key=lambda c: c.step.memory.needed)))
    elif len(fit) < len(ranked):
        say("does not fit, though it would be the quickest of those:")
        say(_line(next(c for c in ranked if not c.fits)))
    return {
        "model": network.name,
        "cluster": cluster.name,
        "gpus": arguments.gpus,
        "layouts": [c.as_json() for c in ranked],
    }


def _line(c: Candidate) -> str:
    recompute = ", all recomputed" if c.layout.recompute == "full" else ""
    return (
        f"{c.step.tokens_per_gpu:12,.0f} {c.step.utilisation:6.1%} "
        f"{c.step.memory.needed / 1e9:6.1f}  {c.layout}{recompute}"
    )


def _validate(arguments: argparse.Namespace) -> object:
    if arguments.json and arguments.json.exists() and arguments.table.exists():
        if arguments.json.samefile(arguments.table):
            raise InvalidInput(
                f"expected another file than the table for --json, got {arguments.json}"
            )
    report = validate(arguments.table)
    say(f"{arguments.table.name}: {report.kind}")
    say(f"{'row':>5} {'measured':>12} {'predicted':>12} {'error':>8}  unit, what")
    for row in report.rows:
        say(
            _compared(row, row.error)
            + (f"; time {row.error_of_time:+.1%}" if row.bandwidth else "")
        )
    if report.absolute:
        say("the same rows, not as speed-ups; errors of the time:")
    for row in report.absolute:
        say(_compared(row, row.error_of_time))
    for line in report.refused:
        say(f"not predicted: {line}")
    for line in report.notes:
        say(f"note: {line}")
    for name, value in report.extra.items():
        _say_all(name, value)
    if any(row.speedup for row in report.rows):
        say("errors of speed-ups: measured / predicted - 1; the times may be far off")
    elif any(row.rate for row in report.rows):
        say("errors of rates are those of the time: measured / predicted - 1")
    _say_all("sum", report.summary())
    return report.as_json()


def _compared(row: Compared, error: float) -> str:
    return (
        f"{row.row:5} {row.measured:12,.4g} {row.predicted:12,.4g} {error:+8.1%}  "
        f"{row.unit}, {row.name}"
    )


def _say_all(name: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _say_all(f"{name}, {key.replace('_', ' ')}", inner)
    else:
        say(f"{name}: {f'{value:.4g}' if isinstance(value, float) else value}")


def _roughly(seconds: float) -> str:
    if seconds < 100:
        return f"about {max(1, round(seconds))} s"
    if seconds < 6000:
        return f"about {seconds / 60:.0f} minutes"
    return f"about {seconds / 3600:,.0f} hours"


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.4f} s"
    return f"{value * 1e3:.4f} ms" if value >= 1e-3 else f"{value * 1e6:.3f} us"


def _write(run: Command[object], arguments: argparse.Namespace) -> int:
    """Run a command, and write what it gives to the file that was named, if any."""
    check_outputs({"--json": arguments.json})
    found = run(arguments)
    if arguments.json is not None:
        write_json(arguments.json, found)
    return 0


COST_COMMANDS: dict[str, Command[int]] = {
    "simulate": partial(_write, _simulate),
    "plan": partial(_write, _plan),
    "validate": partial(_write, _validate),
}


def add_commands(commands: Any, formatter: type, whole: Callable[[str], int]) -> None:
    """What a run would cost on a machine that is not there."""
    play = commands.add_parser(
        "simulate",
        help="play a collective on a modelled cluster",
        formatter_class=formatter,
    )
    play.add_argument("--collective", default="allreduce", choices=PLANS)
    play.add_argument(
        "--algorithm", choices=ALLREDUCE, help="of the all-reduce (default: ring)"
    )
    play.add_argument("--ranks", type=whole, default=8, help="how many GPUs")
    play.add_argument(
        "--bytes", default="100MB", help="of the vector, as in 4096, 64KiB, 100MB"
    )
    play.add_argument("--cluster", default="dgx-h100", choices=cluster_names())
    play.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")

    plan = commands.add_parser(
        "plan", help="rank the layouts of a model on a cluster, by predicted speed"
    )
    plan.add_argument("--model", required=True, choices=network_names())
    plan.add_argument("--cluster", required=True, choices=cluster_names())
    plan.add_argument("--gpus", type=whole, required=True, help="how many")
    plan.add_argument("--batch", type=whole, help="sequences, or images, of a step")
    plan.add_argument("--json", type=Path, metavar="FILE", help="write all layouts")

    check = commands.add_parser(
        "validate", help="set predictions beside a table of measurements"
    )
    check.add_argument("table", type=Path, metavar="FILE.csv")
    check.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
