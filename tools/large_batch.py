"""Make chapters/measured/large_batch.json: the full runs of the chapter large_batch.

The code that trains is the page's own, its cells with the tag `experiment`. A run that
is in the file already is not made again, so an interrupted one goes on:

    OMP_NUM_THREADS=1 python tools/large_batch.py
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from make_evidence import about_machine, about_now
from tqdm import tqdm

from d2lmulti.files import write_json

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "chapters" / "large_batch.ipynb"
FILE = ROOT / "chapters" / "measured" / "large_batch.json"
TAG = "experiment"
TOGETHER = 5  # seeds side by side in one array
SEEDS = 20
KS = (1, 2, 4, 8, 16, 32, 64, 128)
RULES = ("same", "none", "constant", "gradual", "root")
EPOCHS = (0, 1, 2, 5, 10, 14, 20, 29)  # at which the noise is measured
SWEPT = (1, 4, 16, 64, 128)  # batches at which every learning rate below is tried
SGD_RATES = tuple(0.00125 * 2**i for i in range(10))
ADAM_RATES = tuple(0.0005 * 2**i for i in range(10))
GOAL, LONGEST = 0.1, 20 * 1024  # the loss to reach, and the most examples

Runs = Iterator[tuple[str, Callable[[range], Any]]]


def page_code() -> dict[str, Any]:
    """Run the tagged cells of the page and give what they define."""
    nb = nbformat.read(PAGE, as_version=4)
    found: dict[str, Any] = {}
    for cell in nb.cells:
        if TAG in cell.metadata.get("tags", []):
            exec(cell.source, found)
    return found


def runs(code: dict[str, Any]) -> Runs:
    """Give every run by name, as a function of its seeds."""
    train = code["train"]

    def trained(
        k: int, rule: str, lr: float, *warm_up: float, **how: Any
    ) -> Callable[[range], Any]:
        return lambda seeds: train(k, code[rule](k, lr, *warm_up), seeds, **how)

    for k in KS:
        for rule in RULES if k > 1 else ("same",):
            yield f"normalized/{rule}/{k}", trained(k, rule, 0.03)
    for k in (1, 4, 8, 16, 32):
        for name, gain in (("plain", 1.0), ("doubled", 2.0)):
            for rule in RULES[1:4] if k > 1 else ("same",):
                how = {"share": None, "gain": gain}
                yield f"{name}/{rule}/{k}", trained(k, rule, 0.005, **how)
        if k > 1:  # a warm-up of a fifth of the run
            how = {"share": None, "gain": 2.0}
            yield f"doubled/longer/{k}", trained(k, "gradual", 0.005, 0.2, **how)
    for k in (1, 4, 16, 32, 64, 128):
        for times in (0.25, 0.5, 1, 2, 4):
            yield f"rate/{times}/{k}", trained(k, "gradual", 0.03 * times)
            if times < 4:
                yield f"goal/{times}/{k}", to_goal(code, k, 0.03 * times * k)
    for share in (64, 8, 4, 2, 1):
        yield f"share/{share}", trained(8, "gradual", 0.03, share=share)
    for k in SWEPT:
        for lr in SGD_RATES:
            yield f"sgd/{lr}/{k}", swept(code, k, lr)
        for lr in ADAM_RATES:
            yield f"adam/{lr}/{k}", swept(code, k, lr, adam=True)
    yield "noise/corrected", lambda seeds: noise(code, seeds, 4096)[0]
    yield "noise/uncorrected", lambda seeds: noise(code, seeds, 128)[1]


def swept(
    code: dict[str, Any], k: int, lr: float, adam: bool = False
) -> Callable[[range], Any]:
    """Give a run without normalization whose learning rate rises from lr / 10 to lr."""
    rate = code["gradual"](10, lr / 10)

    def run(seeds: range) -> Any:
        step_ = code["make_adam"]() if adam else code["momentum_"]
        return code["train"](k, rate, seeds, share=None, step_=step_)

    return run


def to_goal(code: dict[str, Any], k: int, lr: float) -> Callable[[range], Any]:
    """Give a run at a constant rate that counts the examples until the loss is low.

    The loss is that of all training images, normalized together. It is computed every
    128 examples, or after each step if that is longer. What is not there in time counts
    as LONGEST.
    """

    def run(seeds: range) -> np.ndarray:
        found = np.full(len(seeds), float(LONGEST))

        def watch(epoch: float, Ws: list[np.ndarray], rows: np.ndarray) -> None:
            seen = round(1024 * epoch)
            if seen % 128 == 0 and found.max() == LONGEST:
                low = mean_loss(code, Ws, rows) < GOAL
                found[low] = np.minimum(found[low], seen)

        code["train"](k, lambda part: lr, seeds, epochs=LONGEST // 1024, watch=watch)
        return found

    return run


def mean_loss(
    code: dict[str, Any], Ws: list[np.ndarray], rows: np.ndarray
) -> np.ndarray:
    """Return the mean loss of the training images, one value per seed."""
    H = code["images"][rows]
    for W in Ws[:-1]:
        H = np.maximum(code["normalize"](H @ W, 1024)[0], 0)
    Z = H @ Ws[-1]
    right = np.take_along_axis(Z, code["labels"][rows][..., None], -1)[..., 0]
    return (np.logaddexp.reduce(Z, -1) - right).mean(-1)


def noise(code: dict[str, Any], seeds: range, groups: int) -> np.ndarray:
    """Measure both noise scales along the run with the small batch.

    Returns (2, seeds, EPOCHS): the corrected estimates and the uncorrected ones.
    """
    found: list[np.ndarray] = []

    def watch(epoch: float, Ws: list[np.ndarray], rows: np.ndarray) -> None:
        if epoch in EPOCHS:
            found.append(code["noise_scale"](Ws, rows, groups))

    code["train"](1, code["same"](1, 0.03), seeds, watch=watch)
    return np.stack(found, 2)


def main() -> int:
    """Make what is missing, and write the file after every run."""
    made: dict[str, Any] = {"runs": {}, "seconds": 0.0}
    if FILE.exists():
        made = json.loads(FILE.read_text(encoding="utf-8"))
    made |= {"made": about_now(), "machine": about_machine(), "epochs": EPOCHS}
    code = page_code()
    wanted = dict(runs(code))
    groups = [range(s, s + TOGETHER) for s in range(0, SEEDS, TOGETHER)]
    made["runs"] = {k: rows for k, rows in made["runs"].items() if k in wanted}
    missing = [name for name in wanted if name not in made["runs"]]
    for name in tqdm(missing, unit=" runs"):
        began = time.process_time()
        with np.errstate(all="ignore"):  # what diverges is counted as lost
            rows = np.concatenate([wanted[name](seeds) for seeds in groups])
        made["runs"][name] = np.round(rows, 3).tolist()
        made["seconds"] += time.process_time() - began
        write_json(FILE, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
