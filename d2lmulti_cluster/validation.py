"""Validate the model on published tables, which are recognized by their header.

The tables of convolutional networks, of pipelines and of collectives are read here,
those of transformers in `transformer_tables.py`. Chapter: *cost_model*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from d2lmulti.checks import shown
from d2lmulti.errors import InvalidInput
from d2lmulti.observe.link import Link

from .comparison import Compared, Report, Row, read_table
from .convolution import conv_step, pipeline_rate
from .cost import bus_bandwidth
from .hardware import Cluster
from .nccl import COLLECTIVES, nccl_seconds
from .networks import CONVNETS
from .presets import CLUSTERS, MACHINE_OF, SOCKETS, find_device, with_nodes_of
from .transformer_tables import korthikanti, megatron_core, sc21, ultrascale

OTHER_NAMES = {
    "all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall",
    "reducescatter": "reduce_scatter", "all2all": "alltoall",
}  # fmt: skip
# benchmarks/resnet101-speed/main.py in github.com/kakaobrain/torchgpipe: micro-batches.
TORCHGPIPE = {1: 2, 2: 1667, 4: 256, 8: 150}


class Entry(NamedTuple):
    """A row of a group, in which one row is the base of the others' speed-ups."""

    row: int
    words: str  # {} stands for the base's devices
    order: tuple[int, ...]  # the base has the smallest
    devices: int
    measured: float
    predicted: float


def _compare_speedups(groups: Iterable[list[Entry]], report: Report) -> None:
    for group in groups:
        base = min(group, key=_order)
        for row, words, _, devices, measured, predicted in group:
            if row != base.row:
                speedups = measured / base.measured, predicted / base.predicted
                words = words.replace("{}", str(base.devices))
                naive = devices / base.devices
                report.rows.append(
                    Compared(row, words, "x", *speedups, rate=True, naive=naive)
                )


_order = attrgetter("order")


def cnn_scaling(rows: list[Row], report: Report) -> None:
    """Compare speed-ups over the fewest GPUs of the same table.

    The images per second themselves are added as absolute rows.
    """
    groups: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for row in rows:
        with report.predicting(row):
            net = _convnet(row.text("model"))
            cluster = machine(row.text("hw"))
            gpus, batch = row.count("gpus"), row.count("batch_per_gpu")
            step = conv_step(CONVNETS[net], gpus, batch, cluster)
            speeds = row.number_of("images_per_s"), step.images_per_second
            model, *more = (row.text(c) for c in ("model", "source", "hw", "update"))
            words = f"{model}: {gpus} over {{}} GPUs"
            entry = Entry(row.number, words, (gpus,), gpus, *speeds)
            groups[(model, *more, batch)].append(entry)
    for (model, *_), group in groups.items():
        group.sort(key=_order)
        for number, _, _, gpus, measured, predicted in group:
            name = f"{model} on {gpus} GPUs"
            report.absolute.append(
                Compared(number, name, "images/s", measured, predicted, rate=True)
            )
    _compare_speedups(groups.values(), report)


def _convnet(name: str) -> str:
    """Return a network by any spelling: resnet-50, ResNet50, resnet_50."""
    by_letters = {"".join(filter(str.isalnum, key)): key for key in CONVNETS}
    plain = "".join(filter(str.isalnum, name.lower()))
    if plain not in by_letters:
        raise InvalidInput(
            f"expected one of {', '.join(CONVNETS)} as model, got {name!r}"
        )
    return by_letters[plain]


def gpipe(rows: list[Row], report: Report) -> None:
    """Compare speed-ups over the row with fewest stages and micro-batches."""
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for row in rows:
        with report.predicting(row):
            stages, m = row.count("K"), row.count("M")
            speed = row.number_of("norm_throughput")
            hardware, model = row.text("hw"), row.text("model")
            words = f"{model} on {hardware}: {stages} stages, M = {m}"
            rate = pipeline_rate(stages, m)
            groups[hardware, model].append(
                Entry(row.number, words, (m, stages), stages, speed, rate)
            )
    _compare_speedups((sorted(g, key=_order) for g in groups.values()), report)


def torchgpipe(rows: list[Row], report: Report) -> None:
    """Compare speed-ups over the baseline; the last micro-batch is not recomputed."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    for row in rows:
        with report.predicting(row):
            stages = row.count("partitions", min=0)
            usual = TORCHGPIPE.get(stages, 8 * stages) if stages else 1
            micro = row.count_or("micro_batches", usual)
            speed = row.number_of("samples_per_s")
            name = row.text("model").removesuffix("baseline").strip()
            words = f"{name}: {stages} partitions, {micro} micro-batches"
            rate, devices = _torchgpipe_rate(stages, micro), max(1, stages)
            groups[name].append(
                Entry(row.number, words, (stages, micro), devices, speed, rate)
            )
    _compare_speedups(groups.values(), report)


def _torchgpipe_rate(stages: int, micro_batches: int) -> float:
    """Return the speed-up over plain training on one GPU (0 stages)."""
    if stages == 0:
        return 1.0
    return pipeline_rate(stages, micro_batches, kept=int(micro_batches > 1))


def collectives(rows: list[Row], report: Report) -> None:
    """Compare microseconds, or bus bandwidth where no time is listed."""
    source = ""
    for row in rows:
        with report.predicting(row):
            if row.text("source") not in ("same", ""):
                source = row.text("source")
            report.rows.append(_collective(row, source))


def _collective(row: Row, source: str) -> Compared:
    op = row.text("op").lower().replace("-", "_").replace(" ", "_")
    op = OTHER_NAMES.get(op, op)
    if op not in COLLECTIVES:
        names = ", ".join(COLLECTIVES)
        raise InvalidInput(f"expected one of {names} as op, got {op!r}")
    cluster = machine(f"{row.text('hw')} {source}")
    gpus = row.count("gpus", min=2, max=2**16)
    nodes = row.count_or("nodes", cluster.nodes(gpus))
    if nodes > gpus or gpus % nodes:
        raise InvalidInput(
            f"expected a number of nodes that divides {gpus} GPUs, got {nodes}"
        )
    cluster = with_nodes_of(cluster, gpus // nodes) if nodes > 1 else cluster
    size = row.count("bytes")
    seconds = nccl_seconds(op, size, gpus, cluster, gpus // nodes)
    words = f"{op} of {size:,} bytes, {gpus} GPUs of {row.text('hw')}"
    link = cluster.inside.bandwidth
    if nodes > 1:
        link = min(link, cluster.nic_per_device * (gpus // nodes))
    if row.text("time_us"):
        naive = bus_bandwidth(op, gpus, size, 1.0) / link
        return Compared(
            row.number, words, "us", row.number_of("time_us"), seconds * 1e6,
            naive=naive * 1e6,
        )  # fmt: skip
    predicted = bus_bandwidth(op, gpus, size, seconds) / 1e9
    measured = row.number_of("busbw_GBps")
    return Compared(
        row.number, words, "GB/s", measured, predicted, bandwidth=True, naive=link / 1e9
    )


def machine(words: str) -> Cluster:
    """Return a cluster by a table's description of its hardware."""
    device = find_device(words)
    lower = words.lower()
    named = [c for name, c in CLUSTERS.items() if name in lower]
    if named:
        return named[0]
    amazon = ("ultrascale", "efa", "p5", "/node")  # the Playbook has "8xH100/node"
    if device.name == "H100" and any(word in lower for word in amazon):
        return CLUSTERS["p5.48xlarge"]
    default = MACHINE_OF[device.name]
    if not default:
        names = ", ".join(gpu for gpu, machine in MACHINE_OF.items() if machine)
        raise InvalidInput(f"expected a GPU among {names} as hw, got {words!r}")
    cluster = CLUSTERS[default]
    if "pcie" in lower and cluster.fabric != "pcie":
        link = Link(5.7e-6, 24e9 if device.name[0] in "AH" else 12e9)
        cluster = replace(cluster, inside=link, fabric="pcie")
    if "ethernet" in lower or "tcp" in lower:
        cluster = replace(cluster, hops=SOCKETS, tree_hops=None)
    return replace(cluster, device=device)


# -- recognizing tables ----------------------------------------------------------------

Reader = Callable[[list[Row], Report], None]


def _by_row(predict: Callable[[Row], list[Compared]]) -> Reader:
    def read(rows: list[Row], report: Report) -> None:
        for row in rows:
            with report.predicting(row):
                report.rows += predict(row)

    return read


class Kind(NamedTuple):
    """One kind of table: its required columns, and its reader.

    "a|b" means one of two columns, or both.
    """

    name: str
    columns: tuple[str, ...]
    read: Reader
    never: str = ""  # a column of another kind, of which this one has all columns

    def missing(self, header: list[str]) -> list[str]:
        """Return the columns that a header lacks."""
        return [c for c in self.columns if not set(c.split("|")) & set(header)]


KINDS = (
    Kind(
        "layouts of nanotron (Ultra-Scale Playbook)",
        ("model", "mbs", "grad_acc", "dp", "pp", "tp", "zero", "tok_s_gpu"),
        ultrascale,
    ),
    Kind(
        "Megatron, SC 2021, table 1",
        ("hidden", "layers", "heads", "TP", "PP", "DP", "global_batch", "micro_batch",
         "seq", "vocab", "tflops_per_gpu"),
        _by_row(sc21),
    ),
    Kind(
        "Korthikanti et al., 2022, table 5",
        ("model", "TP", "PP", "DP", "batch",
         "iter_s_full_recompute|iter_s_seqpar_plus_selective"),
        _by_row(korthikanti),
    ),
    Kind(
        "Megatron-Core, weak scaling",
        ("hidden", "layers", "heads", "TP", "PP", "DP", "global_batch", "seq", "vocab",
         "tflops_per_gpu"),
        _by_row(megatron_core),
        never="recompute",
    ),
    Kind(
        "data parallelism of convolutional networks",
        ("hw", "gpus", "model", "batch_per_gpu", "images_per_s"),
        cnn_scaling,
    ),
    Kind("GPipe, table 2", ("model", "K", "M", "norm_throughput"), gpipe),
    Kind(
        "torchgpipe's benchmarks", ("model", "partitions", "samples_per_s"),
        torchgpipe,
    ),
    Kind(
        "collectives", ("hw", "op", "gpus", "bytes", "time_us|busbw_GBps"),
        collectives,
    ),
)  # fmt: skip


def validate(path: Any) -> Report:
    """Predict every row of a CSV file of measurements, and compare.

    The header determines the kind of table (see KINDS). A row that cannot be predicted
    is listed with its line number and why, and does not count. Raises `InvalidInput`
    for a file that is no table, another header, and where no row can be predicted.
    """
    header, rows = read_table(path)
    kind = _kind_of(header)
    report = Report(kind.name)
    kind.read(rows, report)
    if not report.rows and not report.extra:
        why = "there is nothing to compare; a speed-up needs two rows of one model"
        if report.refused:
            why = report.refused[0]
        raise InvalidInput(f"expected a row that can be predicted, got none; {why}")
    return report


def _kind_of(header: list[str]) -> Kind:
    for kind in KINDS:
        if not kind.missing(header) and kind.never not in header:
            return kind
    kinds = "".join(f"\n  {kind.name}: {', '.join(kind.columns)}" for kind in KINDS)
    raise InvalidInput(
        "expected the header of a table that is known, got "
        f"{shown(','.join(header))}. Known are, with these columns and any "
        f"others:{kinds}"
    )
