"""Megatron's published tables: iteration times of GPT models on A100 and H100.

The tables tell operations a second; the time of an iteration follows from their own
count of operations. Narayanan et al. (2021), table 1: with recomputation; Korthikanti
et al. (2022), table 5; the weak-scaling table of Megatron-Core's README.
"""

from __future__ import annotations

from d2lmulti.errors import InvalidInput

from ..layout import Layout
from ..networks import Transformer
from ..presets import get_cluster
from ..software import MEGATRON_2021, MEGATRON_2022, MEGATRON_CORE
from ..step_time import Step, step_time
from .score import Compared
from .table import Row

# Korthikanti et al., table 3: layers, hidden, heads, micro-batch.
KORTHIKANTI = {
    "22B": (48, 6144, 64, 4),
    "175B": (96, 12288, 96, 1),
    "530B": (105, 20480, 128, 1),
    "1T": (128, 25600, 160, 1),
}


def sc21(row: Row) -> list[Compared]:
    """Full recomputation on A100, 8 a node."""
    model = _gpt(row, tied=True)
    data, batch = row.count("DP"), row.count("global_batch")
    size = row.count("micro_batch")
    layout = Layout(
        data, row.count("TP"), row.count("PP"), size, _micro_batches(batch, data, size),
        0, row.text("recompute") or "full", row.count_or("virtual_stages", 1), False,
    )  # fmt: skip
    step = step_time(model, layout, get_cluster("dgx-a100"), MEGATRON_2021)
    passes = 4 if layout.recompute == "full" else 3
    return [_iteration(row, model, batch, passes, step)]


def megatron_core(row: Row) -> list[Compared]:
    """H100. The table tells no micro-batch and no chunks: the quickest that fits."""
    model = _gpt(row, tied=False)
    data, tensor, pipeline = (row.count(name) for name in ("DP", "TP", "PP"))
    batch = row.count("global_batch")
    each = batch // data
    found: list[Step] = []
    for size in (1, 2, 4, 8):
        for chunks in (1, 2, 4, 8, 16) if pipeline > 1 else (1,):
            turns = chunks == 1 or each // size % pipeline == 0
            if each % size or model.layers / pipeline % chunks or not turns:
                continue
            layout = Layout(
                data, tensor, pipeline, size, each // size, int(data > 1), "none",
                chunks, tensor > 1,
            )  # fmt: skip
            step = step_time(model, layout, get_cluster("dgx-h100"), MEGATRON_CORE)
            found.append(step)
    fit = [s for s in found if s.memory.needed <= 80e9] or found
    if not fit:
        raise InvalidInput(
            f"expected a global_batch that {data} replicas divide, got {batch}"
        )
    step = min(fit, key=lambda s: s.seconds)
    return [_iteration(row, model, batch, 3, step)]


def korthikanti(row: Row) -> list[Compared]:
    """Two columns of seconds: all recomputed; sequence parallel and selective."""
    name = row.text("model")
    if name not in KORTHIKANTI:
        known = ", ".join(KORTHIKANTI)
        raise InvalidInput(f"expected one of {known} as model, got {name!r}")
    layers, hidden, heads, size = KORTHIKANTI[name]
    model = Transformer(
        name, layers, hidden, heads, 4 * hidden, 51200, 2048, False, True
    )
    data, batch = row.count("DP"), row.count("batch")
    compared = []
    for column, recompute, sequence in (
        ("iter_s_full_recompute", "full", False),
        ("iter_s_seqpar_plus_selective", "selective", True),
    ):
        if not row.text(column):
            continue
        layout = Layout(
            data, row.count("TP"), row.count("PP"), size,
            _micro_batches(batch, data, size), 0, recompute,
            row.count_or("interleave", 1), sequence,
        )  # fmt: skip
        step = step_time(model, layout, get_cluster("dgx-a100"), MEGATRON_2022)
        words = f"{name}, {recompute} recomputation"
        passes = 4 if recompute == "full" else 3
        naive = _operations(model, batch, passes) / step.gpus / step.peak
        seen = row.number_of(column)
        compared.append(
            Compared(row.number, words, "s", seen, step.seconds, naive=naive)
        )
    if not compared:
        raise InvalidInput("expected seconds in one of the two columns, got none")
    return compared


def _gpt(row: Row, tied: bool) -> Transformer:
    hidden = row.count("hidden")
    return Transformer(
        row.text("model"), row.count("layers"), hidden, row.count("heads"), 4 * hidden,
        row.count("vocab"), row.count("seq"), False, tied,
    )  # fmt: skip


def _micro_batches(batch: int, data: int, size: int) -> int:
    if batch % (data * size):
        raise InvalidInput(
            f"expected a batch that {data} replicas of micro-batches of {size} divide, "
            f"got {batch}"
        )
    return batch // data // size


def _iteration(
    row: Row, m: Transformer, batch: int, passes: int, step: Step
) -> Compared:
    gpus = step.gpus
    if row.text("gpus") and row.count("gpus") != gpus:
        raise InvalidInput(
            f"expected DP x TP x PP = {gpus} as gpus, got {row.text('gpus')}"
        )
    flops = _operations(m, batch, passes)
    measured = flops / gpus / (row.number_of("tflops_per_gpu") * 1e12)
    return Compared(
        row.number, f"{m.name} on {gpus} GPUs", "s", measured, step.seconds,
        naive=flops / step.gpus / step.peak,
    )  # fmt: skip


def _operations(m: Transformer, batch: int, passes: int) -> float:
    """The tables' own count: 24 B s l h^2 (1 + s/6h) a pass, 6 B s h V for the head."""
    tokens = batch * m.sequence
    layers = 24 * tokens * m.layers * m.hidden**2 * (1 + m.sequence / (6 * m.hidden))
    return passes * layers + 6 * tokens * m.hidden * m.vocabulary
