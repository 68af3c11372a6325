"""Pages, docstrings and messages use the field's words, so that a search finds them."""

import re

import nbformat
from book.notebooks import ROOT

# A private phrase, as a pattern, and what the field says. None has an ordinary use.
PRIVATE = {
    r"way (back|there|forth)\b": "backward pass, forward pass",
    r"middle error": "median error",
    r"shared? out\b": "shard, distribute",
    r"share of the gradient": "partial gradient",
    r"summands?\b": "partial sum",
    r"who(ever)? (finds?|found) none\b": "finds no free slot",
    r"layer parallel(ism)?\b": "tensor parallelism",
    r"way to split": "parallelism strategy",
    r"stands? idle": "is idle",
    r"half as long again": "1.5 times as long",
    r"(a|one) \d+(nd|th) of\b": "1/32 of",
    r"is of (19|20)\d\d": "was released in",
    r"lie apart": "differ",
    r"those that are left": "remaining ranks",
    r"meeting place": "rendezvous endpoint",
    r"fullest (device|rank)": "device with peak memory",
    r"what went round": "residual connection",
    r"engine that carries": "communication backend",
    r"rooms? of (a|the) library": "module",
    r"verbs? of (a|the|every) backend": "function",
    r"batch that grows along": "weak scaling",
    r"piece of the sum": "cost term",
    r"said nothing": "logged no error",
    r"as good as its": "a sentence without a riddle",
}
CHAPTERS = ROOT / "chapters"
HOMES = ("d2lmulti", "d2lmulti_cluster", "d2lmulti_book", "benchmarks", "examples")


def texts():
    """Yield the name and text of all that a reader may meet: pages and programs."""
    for path in sorted(CHAPTERS.glob("*.ipynb")):
        for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
            shown = [o.get("text", "") for o in cell.get("outputs", [])]
            figure = str(cell.metadata.get("mystnb", ""))
            yield (
                f"{path.name}, cell {number}",
                "\n".join([cell.source, *shown, figure]),
            )
    tops = [ROOT / f"{name}.md" for name in ("README", "INSTALL", "CONTRIBUTING")]
    pages = [*CHAPTERS.rglob("*.md"), *tops]
    programs = (p for home in HOMES for p in sorted((ROOT / home).rglob("*.py")))
    for path in (*pages, *programs):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def private(text, name="text"):
    """Return a complaint for each private phrase, also one broken over two lines."""
    flat = re.sub(r"\s+(# ?)?", " ", text)
    return [
        f"{name}: ...{flat[max(0, hit.start() - 40) : hit.end() + 20]}...: {better}"
        for phrase, better in PRIVATE.items()
        for hit in re.finditer(phrase, flat, flags=re.IGNORECASE)
    ]


def test_no_page_docstring_or_message_has_a_private_word():
    found = [c for name, text in texts() for c in private(text, name)]
    assert not found, "\n".join(found)
