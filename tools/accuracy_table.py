"""Does training work everywhere? Backends x devices x seeds, with the default settings.

    python tools/accuracy_table.py               test accuracy after the last epoch
    python tools/accuracy_table.py --losses      losses in float64, which must agree

Ends with 1 if an accuracy is under 97 %, or if a loss differs from that of the first
backend on one device in its first 6 digits. All 90 runs take about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

os.environ.setdefault("D2LMULTI_QUIET", "1")  # one bar, for the runs

import numpy as np
from tqdm import tqdm

from d2lmulti import History, get_backend, train
from d2lmulti.backends import framework_names
from d2lmulti.errors import BackendNotInstalled

LEAST = 0.97  # of the test images, after the last epoch
DIGITS = 6  # in which float64 losses agree


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for and print the table; return 1 if it is not good enough."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--backends", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--seeds", type=int, default=10, help="0 to this, exclusive")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--losses", action="store_true", help="compare float64 losses")
    asked = parser.parse_args(argv)
    dtype = "float64" if asked.losses else "float32"
    columns = [(b, k) for b in asked.backends or installed() for k in asked.devices]
    runs: dict[tuple[str, int, int], History] = {}
    with tqdm(total=len(columns) * asked.seeds, unit="run") as bar:
        for name, k in columns:
            for seed in range(asked.seeds):
                bar.set_postfix_str(f"{name} on {k}, seed {seed}")
                runs[name, k, seed] = train(
                    k, seed=seed, dtype=dtype, backend=name, epochs=asked.epochs,
                    model=asked.model,
                )  # fmt: skip
                bar.update()
    judge = compare_losses if asked.losses else tabulate_accuracies
    return judge(runs, columns, asked.seeds)


def installed() -> list[str]:
    """Return the names of the backends that import; say which do not."""
    found = []
    for name in framework_names():
        try:
            get_backend(name)
            found.append(name)
        except BackendNotInstalled as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


def tabulate_accuracies(
    runs: dict[tuple[str, int, int], History],
    columns: list[tuple[str, int]],
    seeds: int,
) -> int:
    """Print the last accuracy of every run; return 1 if one is under LEAST."""
    last = {key: history.accuracies[-1] for key, history in runs.items()}
    print("seed " + "".join(f"{f'{name} x{k}':>11}" for name, k in columns))
    for seed in range(seeds):
        row = (last[name, k, seed] for name, k in columns)
        print(f"{seed:<5}" + "".join(f"{accuracy:11.4f}" for accuracy in row))
    lowest = (min(last[(*column, seed)] for seed in range(seeds)) for column in columns)
    print("least" + "".join(f"{accuracy:11.4f}" for accuracy in lowest))
    low = [key for key, accuracy in last.items() if not accuracy >= LEAST]
    for name, k, seed in low:
        print(f"under {LEAST:.0%}: {name} on {k} devices, seed {seed}")
    return bool(low)


def compare_losses(
    runs: dict[tuple[str, int, int], History],
    columns: list[tuple[str, int]],
    seeds: int,
) -> int:
    """Print how far losses are from the first column's; return 1 if too far."""
    differ = False
    for seed in range(seeds):
        base = runs[(*columns[0], seed)].losses
        print(f"seed {seed}: " + " ".join(f"{loss:.{DIGITS}g}" for loss in base))
        for name, k in columns:
            losses = np.array(runs[name, k, seed].losses)
            apart = np.max(np.abs(losses / base - 1))
            print(f"  {name} on {k}: at most {apart:.1e} of the loss apart")
            differ = differ or not apart < 0.5 * 10**-DIGITS  # a NaN differs
    return differ


if __name__ == "__main__":
    sys.exit(main())
