"""Make the evidence page: what was tried, and what came out, from real runs.

    python tools/make_evidence.py                    # all tables
    python tools/make_evidence.py strategies ratios  # these tables
    python tools/make_evidence.py one_gpu            # what needs a GPU: its own records
    python tools/make_evidence.py --render           # lay out what is recorded
    python tools/make_evidence.py --check            # may the record be published?

The runs are in tests/evidence. A table is written as soon as it is made; the command
stops with 1 at the first wrong result, which the page then shows.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

# One thread each, as the tests have it: read when NumPy and frameworks are imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["D2LMULTI_QUIET"] = "1"  # the steps below are the progress
ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests")]

import psutil  # noqa: E402
from evidence import collectives, faults, ratios, reported, strategies  # noqa: E402
from evidence_page import render  # noqa: E402

from d2lmulti_book.neighbors import Neighbors  # noqa: E402

RECORD, PAGE = "chapters/measured/evidence.json", "chapters/evidence.md"
GPU_RECORDS = [  # tests; times that pages quote; the times of another run
    f"chapters/measured/one_gpu{name}.json" for name in ("", "_times", "_times_again")
]
HOMES = ("d2lmulti", "d2lmulti_cluster", "d2lmulti_book", "benchmarks")
DRAWINGS = "d2lmulti_book/figures"  # of chapters: no table can change with them
BUSY = 0.3  # cores that other programs may use before and after a table
PACKAGES = {
    "NumPy": "numpy",
    "PyTorch": "torch",
    "MXNet": "mxnet",
    "Paddle": "paddlepaddle",
    "Horovod": "horovod",
}
Row = dict[str, Any]
Record = dict[str, dict[str, Any]]


class Table(NamedTuple):
    """How a table is made, which rows are wrong, and which tests it depends on."""

    rows: Callable[[Callable[[str], None]], list[Row]]
    wrong: Callable[[Row], bool]
    tests: tuple[str, ...] = ()


PROCESSES = ("tests/processes",)
# In the order of making them: timings first, while the machine is as quiet as it was.
TABLES = {
    "ratios": Table(ratios.ratios, ratios.no_time),
    "sharded": Table(ratios.sharded, ratios.no_time),
    "strategies": Table(strategies.strategies, strategies.differs, PROCESSES),
    "mesh": Table(strategies.meshes, strategies.differs, PROCESSES),
    "collectives": Table(collectives.collectives, collectives.is_no_sum, PROCESSES),
    "bugs": Table(
        reported.planted_bugs,
        reported.unnoticed,
        ("tests/backends", "tests/bugs", "tests/processes"),
    ),
    "faults": Table(faults.faults, faults.ended_badly, PROCESSES),
    "scripts": Table(
        reported.killed_scripts, reported.hardly_killed, ("examples", *PROCESSES)
    ),
    "nonsense": Table(
        reported.invalid_input, reported.accepted, ("tests/backends", "tests/pure")
    ),
}


def digest(table: Table, root: Path = ROOT) -> str:
    """Hash the names and contents of all programs that a table depends on."""
    found = hashlib.sha256()
    for folder in (*HOMES, "tests/evidence", *table.tests):
        for path in sorted((root / folder).rglob("*.py")):
            if root / DRAWINGS in path.parents:
                continue
            found.update(path.relative_to(root).as_posix().encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]


def about_machine() -> dict[str, Any]:
    """Tell of the machine and of what is installed there; names no person or place."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    processor, system = platform.processor(), platform.platform(terse=True)
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        names = [line for line in lines if line.startswith("model name")]
        processor = names[0].partition(": ")[2] if names else processor
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    found: dict[str, Any] = {
        "processor": f"{processor}, {platform.machine()}",
        "cores": cores,
        "memory_GiB": round(psutil.virtual_memory().total / 2**30),
        "system": system,
        "Python": platform.python_version(),
    }
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def about_now() -> dict[str, Any]:
    """Return the date and the version."""
    now = datetime.datetime.now(datetime.timezone.utc)
    command = ["git", "describe", "--always", "--dirty"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    library = sys.modules["d2lmulti"].__version__
    return {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "version": library,
        "commit": said.strip(),
    }


def busy(seconds: float = 5.0) -> float:
    """Return how many cores the machine keeps busy while this process sleeps."""
    with Neighbors() as others:
        time.sleep(seconds)
    return round(others.cores, 2)


def made(name: str, table: Table) -> dict[str, Any]:
    """Make one table, and report progress."""
    about, began = about_now() | {"busy_before": busy()}, time.monotonic()
    about["sources"] = digest(table)

    def step(what: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {name}: {what}", flush=True)

    rows = table.rows(step)
    about["minutes"] = round((time.monotonic() - began) / 60, 1)
    about["busy_after"] = busy()
    return {"made": about, "machine": about_machine(), "rows": rows}


def wrong_rows(record: Record) -> dict[str, list[Row]]:
    """Return the wrong rows of each table that has any."""
    wrong = {n: [r for r in record[n]["rows"] if TABLES[n].wrong(r)] for n in record}
    return {name: rows for name, rows in wrong.items() if rows}


def obstacles(record: Record, root: Path = ROOT) -> list[str]:
    """Return a sentence for each reason not to publish the record with this tree."""
    found = [f"{name}: wrong: {rows}" for name, rows in wrong_rows(record).items()]
    for name, table in TABLES.items():
        if name not in record:
            found.append(f"{name}: the table is missing")
            continue
        about = record[name]["made"]
        if about["sources"] != digest(table, root):
            found.append(f"{name}: made from other sources than this tree has")
        load = max(about["busy_before"], about["busy_after"])
        if load > BUSY:
            found.append(f"{name}: other programs used {load:.2f} cores, over {BUSY}")
    return found


def page(record: Record, folder: Path = ROOT) -> str:
    """Lay out this record and those of a GPU."""
    of_gpu = [json.loads((folder / name).read_text("utf-8")) for name in GPU_RECORDS]
    return render(record, wrong_rows(record), of_gpu[0], of_gpu[1:])


def write(record: Record, folder: Path = ROOT) -> None:
    """Write the record, and the page if the record has all tables."""
    ordered = {name: record[name] for name in TABLES if name in record}
    (folder / RECORD).write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")
    if ordered.keys() == TABLES.keys():
        read = json.loads((folder / RECORD).read_text("utf-8"))  # tuples became lists
        (folder / PAGE).write_text(page(read, folder), "utf-8")


def main(arguments: Iterable[str]) -> int:
    """Make the tables that are asked for; 1 if a result is wrong or unpublishable."""
    path = ROOT / RECORD
    record = json.loads(path.read_text("utf-8")) if path.exists() else {}
    names = list(arguments)
    if names == ["--check"]:
        found = obstacles(record)
        complete = record.keys() == TABLES.keys()
        if complete and (ROOT / PAGE).read_text("utf-8") != page(record):
            found.append(f"{PAGE} is not what `--render` writes")
        print(*(found or ["This record may be published with this tree."]), sep="\n")
        return bool(found)
    if names == ["one_gpu"]:
        from evidence import one_gpu

        one_gpu.main()
    if names in (["--render"], ["one_gpu"]):
        write(record)
        return 0
    for name in names or TABLES:
        record[name] = made(name, TABLES[name])
        write(record)  # at once: what has been found is not lost if the next fails
        if wrong := wrong_rows(record).get(name):
            print(f"Stopped, because this is wrong in {name}:", *wrong, sep="\n  ")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
