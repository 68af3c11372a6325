"""Write what the book's calculator knows, and what it must answer.

    python tools/calculator_data.py

`_extra/calculator/data.json`: the library's clusters, networks, programs and constants.
`tests/book/calculator_vectors.json`: layouts drawn at random, each with the step that
`step_time` predicts. The calculator's scripts do the same arithmetic in a browser.
"""

from __future__ import annotations

import json
import pathlib
from dataclasses import asdict
from typing import Any

import numpy as np

from d2lmulti_cluster import layer_time, nccl, networks
from d2lmulti_cluster.layout import RECOMPUTE, ImpossibleLayout, Layout
from d2lmulti_cluster.networks import TRANSFORMERS
from d2lmulti_cluster.presets import CLUSTERS
from d2lmulti_cluster.step_time import step_time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "_extra" / "calculator" / "data.json"
VECTORS = ROOT / "tests" / "book" / "calculator_vectors.json"
PROGRAMS = {
    program.name: program
    for program in (
        networks.NANOTRON,
        networks.MEGATRON_2021,
        networks.MEGATRON_2022,
        networks.MEGATRON_CORE,
    )
}
CONSTANTS = {
    layer_time: ("KERNEL", "USUAL_SHAPE", "TILES", "FLASH", "FLASH_AMPERE"),
    nccl: ("WITHOUT_LL128", "LL_MOST", "TREE_UP_TO", "SHARE_OF_UNITS"),
    networks: ("CALL",),
}
COUNT = 300  # layouts


def tables() -> dict[str, Any]:
    """Return all that the calculator knows; constants by their names in the library."""
    constants = {
        name: getattr(module, name)
        for module, names in CONSTANTS.items()
        for name in names
    }
    constants["PROTOCOLS"] = [protocol._asdict() for protocol in nccl.PROTOCOLS]
    return {
        "constants": constants,
        "clusters": {name: asdict(cluster) for name, cluster in CLUSTERS.items()},
        "networks": {name: asdict(model) for name, model in TRANSFORMERS.items()},
        "programs": {name: asdict(program) for name, program in PROGRAMS.items()},
    }


def vectors() -> list[dict[str, Any]]:
    """Draw layouts and give the step of each; None where it is no layout."""
    rng = np.random.default_rng(14)

    def some(values: Any) -> Any:
        values = list(values)
        return values[rng.integers(len(values))]

    found = []
    for _ in range(COUNT):
        model, cluster, program = some(TRANSFORMERS), some(CLUSTERS), some(PROGRAMS)
        layout = Layout(
            data=some((1, 2, 4, 7, 8, 64, 512)),
            tensor=some((1, 2, 3, 4, 8, 16)),
            pipeline=some((1, 2, 3, 4, 8, 16)),
            micro_batch=some((1, 2, 4)),
            micro_batches=some((1, 4, 8, 32)),
            zero=some((0, 1, 2, 3)),
            recompute=some(RECOMPUTE),
            chunks=some((1, 1, 1, 2)),
            sequence=some((True, False)),
        )
        about = {"network": model, "cluster": cluster, "program": program}
        about |= {"layout": asdict(layout)}
        found.append(about | {"step": _answer(model, layout, cluster, program)})
    return found


def _answer(
    model: str, layout: Layout, cluster: str, program: str
) -> dict[str, float] | None:
    try:
        step = step_time(
            TRANSFORMERS[model], layout, CLUSTERS[cluster], PROGRAMS[program]
        )
    except ImpossibleLayout:
        return None
    return {
        "seconds": step.seconds,
        "stages": step.stages,
        "gradients": step.gradients,
        "optimizer": step.optimizer,
        "tokens_per_gpu": step.tokens_per_gpu,
        "utilisation": step.utilisation,
        "needed": step.memory.needed,
        "states": step.memory.states,
        "activations": step.memory.activations,
    }


def data_text() -> str:
    """Give data.json: a line a row, so that a change can be read."""
    parts = []
    for table, rows in tables().items():
        lines = (f"{json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items())
        parts.append(f"{json.dumps(table)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def vectors_text() -> str:
    """Give the vectors' file: a line a layout."""
    return "[\n" + ",\n".join(map(json.dumps, vectors())) + "\n]\n"


if __name__ == "__main__":
    for file, text in ((DATA, data_text()), (VECTORS, vectors_text())):
        file.write_text(text, encoding="utf-8")
        print(f"{file.name}: {file.stat().st_size:,} bytes")
