"""The command that makes the evidence page; see `__init__.py`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from d2lmulti.backends import framework_names, get_backend
from d2lmulti.errors import BackendNotInstalled
from d2lmulti_book.notebook import is_installed

from . import ROOT, __doc__
from .machine import about_machine, about_now, busy, load
from .record import ORDER, PAGE, TABLES, Record, load_record, render, write
from .release import obstacles
from .sources import digest


def main(arguments: list[str] | None = None) -> int:
    """Make the tables that are asked for; stop with 1 at the first wrong result."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.evidence", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", nargs="+", choices=TABLES, help="only these tables")
    parser.add_argument(
        "--quick", action="store_true", help="a case of each on NumPy, to try the tool"
    )
    parser.add_argument(
        "--render", action="store_true", help="lay out what is recorded; run nothing"
    )
    parser.add_argument(
        "--check", action="store_true", help="may the record be published? run nothing"
    )
    parser.add_argument("--output", type=Path, default=ROOT, help="for page and record")
    options = parser.parse_args(arguments)
    if options.render:
        print(f"The page is {write(load_record(options.output), options.output)}")
        return 0
    if options.check:
        return check(load_record(options.output), options.output)
    if options.quick and options.output.resolve() == ROOT:
        parser.error("--quick tries the tool and is no evidence; give it an --output")
    if not options.quick and (missing := not_installed()):
        parser.error(f"this needs all of it, and {missing}")
    os.environ["D2LMULTI_QUIET"] = "1"  # the steps below are the progress
    for name in options.only or ORDER:
        new = made(name, options.quick)
        # At once: what has been found is not lost if the next fails.
        page = write(load_record(options.output) | {name: new}, options.output)
        print(f"The page with this table is {page}", flush=True)
        if wrong := TABLES[name].wrong(new["rows"]):
            print(f"Stopped, because this is wrong in {name}:", *wrong, sep="\n  ")
            return 1
    return 0


def check(record: Record, folder: Path) -> int:
    """Print why the record must not be published with this tree; 1 if so."""
    found = obstacles(record, TABLES)
    page = folder / PAGE
    if not page.exists() or page.read_text(encoding="utf-8") != render(record):
        found.append(f"{PAGE} is not what `--render` writes")
    if found:
        print("This record must not be published:", *found, sep="\n  ")
        print('`make evidence ONLY="..."` makes tables again, on a quiet machine.')
    else:
        print(f"All {len(TABLES)} tables were made from this tree on a quiet machine.")
    return bool(found)


def made(name: str, quick: bool) -> dict:
    """Make one table, and report progress."""
    idle = 0.1 if quick else 5.0
    about, began = about_now() | {"busy_before": busy(idle)}, time.monotonic()
    about["sources"] = digest(TABLES[name].SOURCES)

    def step(what: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {name}: {what}", flush=True)

    rows = TABLES[name].rows(quick, step)
    about["minutes"] = round((time.monotonic() - began) / 60, 1)
    about["load_after"], about["busy_after"] = load(), busy(idle)
    return {"made": about, "machine": about_machine(), "rows": rows}


def not_installed() -> str:
    """Return what is missing of the frameworks, or nothing."""
    for name in framework_names():
        try:
            get_backend(name)
        except BackendNotInstalled as error:
            return str(error)
    return "" if is_installed("horovod") else "Horovod is missing; make horovod"


if __name__ == "__main__":
    sys.exit(main())
