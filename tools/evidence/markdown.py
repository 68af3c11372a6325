"""Tables and numbers as the page writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """Lay out a table; the first columns are words, the others are numbers."""
    lines = [list(head), ["---"] * words + ["--:"] * (len(head) - words)]
    lines += [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def small(x: float) -> str:
    """Write a difference: 0, or two digits and a power of ten, in one piece."""
    if x == 0:
        return "0"
    digits, _, power = f"{x:.1e}".partition("e")
    return f"{digits}·10{str(int(power)).translate(_RAISED)}"


def between(ends: Sequence[float], digits: str = ".2f") -> str:
    """Write a range, in one piece."""
    return "\u2013".join(f"{end:{digits}}" for end in ends)


def folded(title: str, text: str) -> str:
    """Fold a part of the page under a title."""
    return f":::::{{dropdown}} {title}\n{text}\n:::::"


def together(*words: str) -> str:
    """Write words that no line break parts."""
    return "\u00a0".join(words).replace("-", "\u2011")


def count(n: int) -> str:
    """Write a count with commas."""
    return f"{n:,}"


def listed(words: Sequence[str]) -> str:
    """Write words one after the other, with `and` before the last."""
    *first, last = words
    comma = "," if len(first) > 1 else ""
    return f"{', '.join(first)}{comma} and {last}" if first else last
