"""What those who carry out plans refuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..checks import check_kind, refusal
from .rounds import Round


def check_rounds(rounds: Iterable[Round]) -> Iterator[Round]:
    """Give the rounds of a plan one by one; refuse what is none."""
    if isinstance(rounds, (str, bytes)) or not isinstance(rounds, Iterable):
        raise refusal("a plan's rounds", rounds, "call a plan, as in ring(4, 100)")
    return (check_kind("a round", r, Round, "a Round") for r in rounds)
