"""Make chapters/measured/gym.json: the gym's programs over five seeds, some minutes.

OMP_NUM_THREADS=1 python tools/gym_accuracies.py           all programs
OMP_NUM_THREADS=1 python tools/gym_accuracies.py bucket    one again
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from d2lmulti.files import write_json  # noqa: E402
from d2lmulti_book.gym.faults import FAULTS, NO_EDIT, Fault, find  # noqa: E402
from d2lmulti_book.gym.grading import SEEDS  # noqa: E402
from d2lmulti_book.gym.runner import run_cases  # noqa: E402

FILE = ROOT / "chapters" / "measured" / "gym.json"


def measure(fault: Fault) -> dict[str, list[float]]:
    """Return the accuracies of the correct and the faulty program, seed by seed.

    And how far the faulty weights are off, of the largest weight of their tensor.
    """
    good, bad = ({}, {})
    for results, edit in ((good, fault.fix), (bad, NO_EDIT)):
        names: dict[str, Any] = {"__name__": fault.name}
        exec(fault.program(fault.backends()[0], edit), names)
        results.update(run_cases(names["train"], SEEDS))
    off = [
        np.abs(bad[place] - value).max() / np.abs(value).max()
        for place, value in good.items()
        if "/weights/" in place
    ]
    by_seed = {
        name: [round(float(results[f"{seed}/accuracy"]), 4) for seed in SEEDS]
        for name, results in (("correct", good), ("faulty", bad))
    }
    return by_seed | {"off": [float(f"{max(off):.1e}")]}


if __name__ == "__main__":
    trained = [fault for fault in FAULTS if fault.trains]
    asked = [find(name) for name in sys.argv[1:]] or trained
    table = json.loads(FILE.read_text()) if FILE.exists() else {}
    table |= {fault.name: measure(fault) for fault in tqdm(asked)}
    write_json(FILE, {fault.name: table[fault.name] for fault in trained})
