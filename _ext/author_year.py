"""Cite as "(Goyal et al., 2017)" and list the references without invented codes.

sphinxcontrib-bibtex labels its list "[GDG+17]"; here the label is author and year, with
a letter where two would be equal, and the text cites by it. Round brackets, as in D2L.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pybtex.database import Entry
from pybtex.plugin import register_plugin
from pybtex.style.formatting.plain import Style as PlainStyle
from pybtex.style.labels import BaseLabelStyle
from sphinx.application import Sphinx
from sphinxcontrib.bibtex.plugin import register_plugin as register_reference_style
from sphinxcontrib.bibtex.style.referencing import BracketStyle
from sphinxcontrib.bibtex.style.referencing.label import LabelReferenceStyle


def author_year(entry: Entry) -> str:
    """Return `Goyal et al., 2017` for an entry."""
    people = entry.persons.get("author") or entry.persons.get("editor") or []
    names = [" ".join(p.prelast_names + p.last_names) for p in people]
    names = [name.replace("{", "").replace("}", "") for name in names]
    who = names[0] if names else entry.fields.get("key", entry.key)
    if len(names) == 2:
        who += f" and {names[1]}"
    elif len(names) > 2:
        who += " et al."
    return f"{who}, {entry.fields.get('year', 'no date')}"


class AuthorYearLabels(BaseLabelStyle):
    """Label an entry `Goyal et al., 2017`; a, b, c part entries that would be equal."""

    def format_labels(self, sorted_entries: Iterable[Entry]) -> list[str]:
        """Return one label per entry, all different."""
        labels = [author_year(entry) for entry in sorted_entries]
        seen: Counter[str] = Counter()
        found = []
        for label in labels:
            letter = chr(ord("a") + seen[label]) if labels.count(label) > 1 else ""
            seen[label] += 1
            found.append(label + letter)
        return found


class AuthorYearStyle(PlainStyle):
    """The plain bibliography, sorted by author and year, with author-year labels."""

    default_label_style = AuthorYearLabels


def round_brackets() -> BracketStyle:
    """Make the bracket style of a citation in round brackets."""
    return BracketStyle("(", ")", sep="; ")


@dataclass
class RoundAuthorYear(LabelReferenceStyle):
    """Cite by the label of the list, in round brackets: (Author, year)."""

    bracket_parenthetical: BracketStyle = field(default_factory=round_brackets)
    bracket_textual: BracketStyle = field(default_factory=round_brackets)


def setup(app: Sphinx) -> dict[str, object]:
    """Register both styles under the name `author_year_round`."""
    register_plugin("pybtex.style.formatting", "author_year_round", AuthorYearStyle)
    register_reference_style(
        "sphinxcontrib.bibtex.style.referencing", "author_year_round", RoundAuthorYear
    )
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
