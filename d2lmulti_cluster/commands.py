"""The commands of the cost model: simulate, plan, validate."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import click

from d2lmulti.checks import MAX_RANKS
from d2lmulti.errors import InvalidInput
from d2lmulti.files import check_outputs, write_json
from d2lmulti.plans.allreduce import ALLREDUCE

from .comparison import Compared
from .networks import ConvNet, get_network, network_names
from .planner import Candidate, plan_data_parallel, plan_layouts
from .presets import CLUSTERS, get_cluster
from .simulate import (
    A_SECOND,
    MANY,
    PLANS,
    count_messages,
    formula_or_none,
    parse_bytes,
)
from .simulate import simulate as play
from .validation import validate as compare

SHOWN = 12  # layouts that are printed; a file has them all
FILE = click.Path(path_type=Path)
CLUSTER = click.Choice(list(CLUSTERS))


def with_json(command: Callable[..., object]) -> Callable[..., None]:
    """Add the option `--json` to a command: a file for its result."""

    @click.option("--json", type=FILE, help="Write the numbers.")
    @wraps(command)
    def run(json: Path | None, **options: Any) -> None:
        check_outputs({"--json": json})
        read = options.get("table")
        if json and read and json.exists() and read.exists() and json.samefile(read):
            raise InvalidInput(
                f"expected another file than the table for --json, got {json}"
            )
        result = command(**options)
        if json is not None:
            write_json(json, result)

    return run


@click.command()
@click.option("--collective", type=click.Choice(list(PLANS)), default="allreduce")
@click.option(
    "--algorithm", type=click.Choice(list(ALLREDUCE)), help="Of the all-reduce."
)
@click.option("--ranks", type=click.IntRange(1, MAX_RANKS), default=8)
@click.option("--bytes", "size", default="100MB", help="Of the vector, as in 64KiB.")
@click.option("--cluster", "name", type=CLUSTER, default="dgx-h100")
@with_json
def simulate(
    collective: str, algorithm: str | None, ranks: int, size: str, name: str
) -> object:
    """Play a collective on a modeled cluster."""
    if algorithm and collective != "allreduce":
        raise InvalidInput(f"expected no --algorithm with {collective}")
    nbytes, cluster = parse_bytes(size), get_cluster(name)
    algorithm = algorithm or "ring"
    messages = count_messages(collective, ranks, cluster, algorithm)
    if messages > MANY:
        formula = formula_or_none(collective, ranks, nbytes, cluster, algorithm)
        estimate = "" if formula is None else f"; the formula says {_seconds(formula)}"
        duration = timedelta(seconds=messages // A_SECOND)
        click.echo(f"playing {messages:,} messages: about {duration}{estimate}")
    played = play(collective, ranks, nbytes, cluster, algorithm)
    click.echo(
        f"{played.collective} by {played.algorithm}, {played.ranks:,} ranks on "
        f"{played.cluster}, {played.nbytes:,} bytes each"
    )
    click.echo(f"clock    {_seconds(played.seconds)}")
    if played.formula_seconds is None:
        click.echo("formula  none: a node is not full")
    else:
        click.echo(f"formula  {_seconds(played.formula_seconds)}")
    if played.bus_bandwidth is not None:
        click.echo(f"busbw    {played.bus_bandwidth / 1e9:.2f} GB/s")
    click.echo(
        f"moved    {played.bytes_moved:,} bytes in {played.messages:,} messages, "
        f"{played.rounds:,} rounds; played in {played.played_in:.2f} s"
    )
    return vars(played)


@click.command()
@click.option("--model", type=click.Choice(network_names()), required=True)
@click.option("--cluster", "name", type=CLUSTER, required=True)
@click.option("--gpus", type=click.IntRange(1, MAX_RANKS), required=True)
@click.option(
    "--batch", type=click.IntRange(1), help="Sequences, or images, of a step."
)
@with_json
def plan(model: str, name: str, gpus: int, batch: int | None) -> object:
    """Rank the layouts of a model on a cluster, by predicted speed."""
    network, cluster = get_network(model), get_cluster(name)
    if isinstance(network, ConvNet):
        steps = plan_data_parallel(network, cluster, gpus, batch)
        single = steps[0].images_per_second / steps[0].images
        click.echo(f"{network.name} on {cluster.name}, data parallelism")
        click.echo(
            f"{'batch':>8} {'images/s':>12} {'ms a step':>10} {'efficiency':>10}"
        )
        for step in steps:
            share = step.images_per_second / step.images / single
            click.echo(
                f"{step.images:8,} {step.images_per_second:12,.1f} "
                f"{step.seconds * 1e3:10.2f} {share:10.1%}"
            )
        rows = [vars(s) | {"images_per_second": s.images_per_second} for s in steps]
        return {"model": network.name, "cluster": cluster.name, "steps": rows}
    ranked = plan_layouts(network, cluster, gpus, batch)
    fit = [c for c in ranked if c.fits]
    click.echo(
        f"{network.name} on {gpus} GPUs of {cluster.name}, "
        f"{ranked[0].layout.batch} sequences a step: {len(ranked)} layouts, "
        f"{len(ranked) - len(fit)} do not fit in {cluster.device.memory / 1e9:.0f} GB"
    )
    click.echo(f"{'tokens/s/GPU':>12} {'MFU':>6} {'GB':>6}  layout")
    for candidate in fit[:SHOWN]:
        click.echo(_line(candidate))
    if not fit:
        click.echo("none fits; the smallest:")
        click.echo(_line(min(ranked, key=lambda c: c.step.memory.needed)))
    elif len(fit) < len(ranked):
        click.echo("does not fit, though it would be the fastest of those:")
        click.echo(_line(next(c for c in ranked if not c.fits)))
    return {
        "model": network.name,
        "cluster": cluster.name,
        "gpus": gpus,
        "layouts": [c.as_json() for c in ranked],
    }


def _line(c: Candidate) -> str:
    recompute = ", all recomputed" if c.layout.recompute == "full" else ""
    return (
        f"{c.step.tokens_per_gpu:12,.0f} {c.step.utilization:6.1%} "
        f"{c.step.memory.needed / 1e9:6.1f}  {c.layout}{recompute}"
    )


@click.command()
@click.argument("table", type=FILE)
@with_json
def validate(table: Path) -> object:
    """Compare predictions with a table of measurements."""
    report = compare(table)
    click.echo(f"{table.name}: {report.kind}")
    click.echo(
        f"{'row':>5} {'measured':>12} {'predicted':>12} {'error':>8}  unit, what"
    )
    for row in report.rows:
        click.echo(
            _compared(row, row.error)
            + (f"; time {row.error_of_time:+.1%}" if row.bandwidth else "")
        )
    if report.absolute:
        click.echo("the same rows, not as speed-ups; errors of the time:")
    for row in report.absolute:
        click.echo(_compared(row, row.error_of_time))
    for line in report.refused:
        click.echo(f"not predicted: {line}")
    for line in report.notes:
        click.echo(f"note: {line}")
    for name, value in report.extra.items():
        _print_all(name, value)
    if any(row.speedup for row in report.rows):
        click.echo(
            "errors of speed-ups: measured / predicted - 1; the times may be far off"
        )
    elif any(row.rate for row in report.rows):
        click.echo("errors of rates are those of the time: measured / predicted - 1")
    _print_all("sum", report.summary())
    return report.as_json()


def _compared(row: Compared, error: float) -> str:
    return (
        f"{row.row:5} {row.measured:12,.4g} {row.predicted:12,.4g} {error:+8.1%}  "
        f"{row.unit}, {row.name}"
    )


def _print_all(name: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _print_all(f"{name}, {key.replace('_', ' ')}", inner)
    else:
        click.echo(f"{name}: {f'{value:.4g}' if isinstance(value, float) else value}")


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.4f} s"
    return f"{value * 1e3:.4f} ms" if value >= 1e-3 else f"{value * 1e6:.3f} us"
