"""Print the lines and files of each part of the repository, next to their ceilings.

A file over 450 lines is a warning, and so is a ceiling that is passed: a new feature
says which lines it removes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grimp
from core import core_lines

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
HOMES: dict[str, tuple[int, int | None]] = {  # lines and files at most
    "d2lmulti": (11_500, 70),
    "d2lmulti/processes": (2_000, 10),
    "d2lmulti/check": (1_200, None),
    "d2lmulti_cluster": (2_500, None),
    "d2lmulti_book": (1_500, None),
    "benchmarks": (500, None),
    "tests": (17_000, None),
    "tools _ext": (2_500, None),
}
LIBRARY = list(HOMES)[:5]
DATA = ROOT / "d2lmulti_book" / "gym" / "programs"  # what learners mend
LONG = 450


def lines(path: Path) -> int:
    """Count the lines of a file, blank ones too."""
    return path.read_text(encoding="utf-8").count("\n")


def files_of(home: str) -> list[Path]:
    """Return the programs of a home; those of a home inside it are not its own."""
    found = [p for folder in home.split() for p in (ROOT / folder).rglob("*.*")]
    programs = [p for p in found if p.suffix in (".py", ".js", ".html")]
    inner = {ROOT / other for other in HOMES if other.startswith(f"{home}/")} | {DATA}
    return [p for p in programs if inner.isdisjoint(p.parents)]


def what_a_step_runs() -> dict[str, int]:
    """Count the lines of the core, with all that it and one backend import, of all."""
    graph = grimp.build_graph("d2lmulti")
    needed = {"d2lmulti.parallel.data", "d2lmulti.backends.pytorch"}
    for module in list(needed):
        needed |= graph.find_upstream_modules(module)
    whole = sum(lines(p) for home in LIBRARY for p in files_of(home))
    modules = [ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in needed]
    modules = [p if p.exists() else p.with_suffix("") / "__init__.py" for p in modules]
    return {
        "core": core_lines(),
        "with imports and PyTorch": sum(map(lines, modules)),
        "library": whole,
    }


def main() -> None:
    """Print the table and what is too long."""
    for home, (max_lines, max_files) in HOMES.items():
        files = files_of(home)
        count = sum(map(lines, files))
        row = f"{home:20} {count:6,} of {max_lines:6,} lines {len(files):5}"
        over = count > max_lines or len(files) > (max_files or len(files))
        print(row, f"of {max_files} files" if max_files else "files", "OVER" * over)
        for path in files:
            if lines(path) > LONG:
                print(f"  long: {path.relative_to(ROOT)}, {lines(path)} lines")
    print(*(f"{name}: {n:,} lines" for name, n in what_a_step_runs().items()), sep="; ")


if __name__ == "__main__":
    main()
