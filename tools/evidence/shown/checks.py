"""The tables of collectives, of planted bugs, and of invalid input."""

from __future__ import annotations

from ..markdown import count, listed, small, table, together
from ..strategies import ENGINES, ONE
from . import Row, Shown


def found_of_collectives(rows: list[Row]) -> str:
    """Return the largest error in one process, and the bits between processes."""
    local = [r for r in rows if r["engine"] == ONE]
    between = [r for r in rows if r["engine"] != ONE]
    worst = max(r["difference"] for r in local)
    text = (
        f"In one process, {count(sum(r['calls'] for r in local))} calls gave NumPy's "
        f"results: small integers exactly, and normal float64 values within "
        f"{small(worst)} of the sum of their absolute values."
    )
    if between:
        differ = sum(len(r["differ"]) for r in between)
        text += (
            f" Between processes, {count(sum(r['results'] for r in between))} results "
            f"were required to equal those of one process bit for bit; {differ} did "
            "not."
        )
    return text


def show_collectives(rows: list[Row]) -> str:
    """Lay out one table of one process, and one of what lies between processes."""
    local = [r for r in rows if r["engine"] == ONE]
    backends = list(dict.fromkeys(r["backend"] for r in local))
    cells = {(r["backend"], r["collective"]): r for r in local}
    body = []
    for name in dict.fromkeys(r["collective"] for r in local):
        line = [cells[b, name] for b in backends]
        pairs = [(f"{count(r['calls'])},", small(r["difference"])) for r in line]
        body.append([name, *(together(*pair) for pair in pairs)])
    dtypes = [f"{cells[b, body[0][0]]['dtypes']} ({b})" for b in backends]
    bits = [
        [ENGINES[r["engine"]][0], r["backend"], r["ranks"], count(r["results"]),
         len(r["differ"])]
        for r in rows if r["engine"] != ONE
    ]  # fmt: skip
    parts = [
        f"In one process, with {_numbers(local, 'ranks')} ranks and vectors of "
        f"{_numbers(local, 'lengths')} elements: the number of calls, and the largest "
        "error on normal float64 values, divided by the sum of their absolute values. "
        "The calls include each numeric dtype that the backend holds: "
        f"{listed(dtypes)}.",
        table(["", *backends], body),
        "Between processes: the number of results, and how many of them differ from "
        "those of one process in any bit.",
        table(["", "backend", "ranks", "results", "differ"], bits, words=2),
    ]
    return "\n\n".join(parts if bits else parts[:2])


def _numbers(rows: list[Row], of: str) -> str:
    return listed([count(n) for n in rows[0][of]])


def found_of_bugs(rows: list[Row]) -> str:
    """Return how many bugs the tests noticed, and what they did to the weights."""
    noticed = [r for r in rows if r["tests"]]
    tests = {test for r in noticed for test in r["tests"]}
    text = (
        f"{len(rows)} bugs were planted, one at a time. {len(tests)} different tests "
        f"noticed {len(noticed)} of them; none was written against the bug that it "
        "noticed. A planted bug that no test notices is itself a failing test, and the "
        "authors chose the bugs. This is therefore no estimate of how many other bugs "
        "would be noticed."
    )
    if measured := [r for r in rows if "difference" in r]:
        far = [x for r in measured if (x := r["difference"] or 0) > FAR]
        text += (
            f" In the training runs above, {len(far)} of {len(measured)} bugs changed "
            f"the weights by more than {small(FAR)}."
        )
    return text


FAR = 1e-12  # a difference that the tests do not accept


def show_bugs(rows: list[Row]) -> str:
    """Lay out one line per bug."""
    body = [
        [r["bug"], f"`{r['file']}`", listed([f"`{t}`" for t in r["tests"]]), _moved(r)]
        for r in rows
    ]
    note = (
        "The last column is the largest difference from the weights of one device in "
        "the training runs of the first table (three ranks, PyTorch; for bugs in "
        "processes, NumPy over shared memory). A bug that only evaluation, another "
        "device, or another strategy shows does not change these weights."
    )
    head = ["bug", "planted in", "first failing test", "change of the weights"]
    return f"{table(head, body, words=3)}\n\n{note}"


def _moved(r: Row) -> str:
    if "difference" not in r:
        return "not measured"
    text = "none" if r["difference"] is None else small(r["difference"])
    return f"{text}, {r['raised']} of {r['runs']} runs failed" if r["raised"] else text


def found_of_nonsense(rows: list[Row]) -> str:
    """Return how many inputs were tried, and what became of them."""
    tried, refused, equal = (sum(r[w] for r in rows)
                             for w in ("tried", "refused", "equal"))  # fmt: skip
    text = (
        f"Of {count(tried)} invalid values, options, and damaged files, "
        f"{count(refused)} were rejected with one of the library's own errors"
    )
    if equal:
        text += f"; the other {count(equal)} were files that read as before the damage"
    return f"{text}."


def show_nonsense(rows: list[Row]) -> str:
    """Lay out one line per kind."""
    body = []
    for r in rows:
        memory, seconds, equal = "", "", ""
        if "memory" in r:
            memory, seconds = f"{r['memory'] / 2**20:.0f} MiB", f"{r['seconds']:.2f} s"
            equal = count(r["equal"])
        body.append([r["what"], count(r["tried"]), count(r["refused"]), equal,
                     memory, seconds])  # fmt: skip
    head = ["", "tried", "rejected", "harmless, read as before", "peak memory",
            "longest"]  # fmt: skip
    return table(head, body)


COLLECTIVES = Shown(
    found_of_collectives,
    "Every collective was called on vectors of many lengths and dtypes, and its "
    "results were compared with NumPy's or with those of one process.",
    show_collectives,
    "tests/backends/test_collectives.py tests/processes/test_engines.py",
)
BUGS = Shown(
    found_of_bugs,
    "Each bug was planted in a copy of the library. The ordinary tests of training "
    "then ran there, with PyTorch, until the first of them failed.",
    show_bugs,
    "tests/bugs",
)
NONSENSE = Shown(
    found_of_nonsense,
    "Every parameter of every public function and every option of the command got "
    "values that make no sense, and files were damaged at random, by seed.",
    show_nonsense,
    "tests/backends/test_bad_options.py tests/pure/test_fuzz_files.py",
)
