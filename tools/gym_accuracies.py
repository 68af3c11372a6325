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
from d2lmulti_book.gym.grading import SEEDS, Results  # noqa: E402
from d2lmulti_book.gym.runner import run_cases  # noqa: E402

FILE = ROOT / "chapters" / "measured" / "gym.json"


def off(results: Results, expected: Results, place: str) -> float:
    """Return how far the weight at a place is off, of the largest of its tensor."""
    value = expected[place]
    return float(np.abs(results[place] - value).max() / np.abs(value).max())


def measure(fault: Fault) -> dict[str, list[float]]:
    """Return the accuracies of the correct and the faulty program, seed by seed.

    And how far the weights are off: those of the faulty program from the correct ones,
    and, for each of the two with seed 0, those of its own number of workers from those
    of one worker.
    """
    runs, alone = [], []
    for edit in (fault.fix, NO_EDIT):
        names: dict[str, Any] = {"__name__": fault.name}
        exec(fault.program(fault.backends()[0], edit), names)
        found = run_cases(names["train"], SEEDS)
        places = [place for place in found if "/weights/" in place]
        one = run_cases(names["train"], ["0:1"])
        copies = {  # as many replicas as there are, all with the weights of the one
            place: one[f"0/weights/0/{place.rpartition('/')[2]}"]
            for place in places
            if place.startswith("0/")
        }
        runs.append(found)
        alone.append(max(off(found, copies, place) for place in copies))
    good, bad = runs
    by_seed = {
        name: [round(float(results[f"{seed}/accuracy"]), 4) for seed in SEEDS]
        for name, results in (("correct", good), ("faulty", bad))
    }
    largest = max(off(bad, good, place) for place in places)
    rounded = {"off": [largest], "one_worker": alone}
    return by_seed | {
        name: [float(f"{value:.1e}") for value in values]
        for name, values in rounded.items()
    }


if __name__ == "__main__":
    trained = [fault for fault in FAULTS if fault.trains]
    asked = [find(name) for name in sys.argv[1:]] or trained
    table = json.loads(FILE.read_text()) if FILE.exists() else {}
    table |= {fault.name: measure(fault) for fault in tqdm(asked)}
    write_json(FILE, {fault.name: table[fault.name] for fault in trained})
