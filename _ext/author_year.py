"""Cite as "(Goyal et al., 2017)" and list the references without invented codes.

sphinxcontrib-bibtex cites by author and year but labels its list "[GDG+17]"; here the
list begins with the words that the text used. Round brackets, as in D2L.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pybtex.database import Entry
from pybtex.plugin import register_plugin
from pybtex.style.formatting.plain import Style as PlainStyle
from pybtex.style.labels import BaseLabelStyle
from sphinx.application import Sphinx
from sphinxcontrib.bibtex.plugin import register_plugin as register_reference_style
from sphinxcontrib.bibtex.style.referencing import BracketStyle
from sphinxcontrib.bibtex.style.referencing.author_year import (
    AuthorYearReferenceStyle,
)


class AuthorYearLabels(BaseLabelStyle):
    """Label an entry `Goyal et al., 2017`; a, b, c part entries that would be equal."""

    def format_labels(self, sorted_entries: Iterable[Entry]) -> Iterator[str]:
        """Yield one label per entry, all different."""
        seen: dict[str, int] = {}
        for entry in sorted_entries:
            people = entry.persons.get("author") or entry.persons.get("editor") or []
            names = [" ".join(p.prelast_names + p.last_names) for p in people]
            names = [name.replace("{", "").replace("}", "") for name in names]
            who = names[0] if names else entry.fields.get("key", entry.key)
            if len(names) == 2:
                who += f" and {names[1]}"
            elif len(names) > 2:
                who += " et al."
            label = f"{who}, {entry.fields.get('year', 'no date')}"
            count = seen[label] = seen.get(label, 0) + 1
            yield label if count == 1 else f"{label}{chr(ord('a') + count - 1)}"


class AuthorYearStyle(PlainStyle):
    """The plain bibliography, sorted by author and year, with author-year labels."""

    default_label_style = AuthorYearLabels


def round_brackets() -> BracketStyle:
    """Make the bracket style of a citation in round brackets."""
    return BracketStyle("(", ")")


@dataclass
class RoundAuthorYear(AuthorYearReferenceStyle):
    """Cite as (Author, year) or Author (year)."""

    bracket_parenthetical: BracketStyle = field(default_factory=round_brackets)
    bracket_textual: BracketStyle = field(default_factory=round_brackets)


def setup(app: Sphinx) -> dict[str, object]:
    """Register both styles under the name `author_year_round`."""
    register_plugin("pybtex.style.formatting", "author_year_round", AuthorYearStyle)
    register_reference_style(
        "sphinxcontrib.bibtex.style.referencing", "author_year_round", RoundAuthorYear
    )
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
