"""The command `python -m d2lmulti bench`."""

from __future__ import annotations

import os
from importlib import import_module

import click

from d2lmulti.backends import backend_name, framework_names
from d2lmulti.errors import BackendNotInstalled

# Name -> module with a function bench_<name>(backend, repeats), what it times.
BENCHMARKS = {
    "allreduce": ("allreduce", "ring all-reduce of 16 MiB on 4 simulated devices"),
    "sharded": (
        "sharded",
        "ZeRO 1, 2, 3 on two CPU processes beside data parallelism, and FSDP",
    ),
    "engines": (
        "engines",
        "one worker against two processes on two CPU cores, ratios of times",
    ),
}


@click.command()
@click.argument("what", type=click.Choice(list(BENCHMARKS)))
@click.option("--backend", help="Only this one (default: all frameworks).")
@click.option("--repeats", type=click.IntRange(1), default=15, show_default=True)
@click.option(
    "--threads", type=click.IntRange(1), default=1, help="Of each framework.",
    show_default=True,
)  # fmt: skip
def bench(what: str, backend: str | None, repeats: int, threads: int) -> int:
    """Time the library next to its peer or the limit."""
    names = framework_names() if backend is None else [backend_name(backend)]
    # Frameworks read this when they are imported.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    module, title = BENCHMARKS[what]
    run = getattr(import_module(f"benchmarks.{module}"), f"bench_{what}")
    click.echo(
        f"{title}, {threads} thread(s), medians of {repeats} repetitions or more, "
        "candidates in turn"
    )
    click.echo(
        f"{'backend':8} {'candidate':44} {'ms a call':>9} {'ratio':>6}  quartiles"
    )
    timed = 0
    for name in names:
        try:
            timings = run(name, repeats=repeats)
        except BackendNotInstalled as error:
            click.echo(f"{name:8} missing: {error}")
            continue
        timed += 1
        for candidate, timing in timings.items():
            low, high = timing.ratio_quartiles
            click.echo(
                f"{name:8} {candidate:44} {timing.seconds * 1e3:9.4g} "
                f"{timing.ratio:6.3f}  {low:.3f} to {high:.3f}"
            )
    return 0 if timed else 1
