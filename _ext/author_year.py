"""Cite as "(Goyal et al., 2017)" and list the references without invented codes.

sphinxcontrib-bibtex labels its list "[GDG+17]"; here the label is author and year, with
a letter where two would be equal, and the text cites by it. Round brackets, as in D2L.
Below each entry stand links to the chapters that cite it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from docutils import nodes
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
    """Cite by the label of the list in round brackets, or by a year: Author (year)."""

    bracket_parenthetical: BracketStyle = field(default_factory=round_brackets)
    bracket_textual: BracketStyle = field(default_factory=round_brackets)
    bracket_year: BracketStyle = field(default_factory=round_brackets)


# They cite what a chapter cites.
BACK_MATTER = ("chapters/glossary", "chapters/references")


def name_chapters(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Add to each entry of the list where it is cited, in the order of the book."""
    domain = app.env.get_domain("cite")
    keys = {citation.citation_id: citation.key for citation in domain.citations}
    included = chain.from_iterable(app.env.toctree_includes.values())
    order = {page: i for i, page in enumerate([app.config.root_doc, *included])}
    for entry in doctree.findall(nodes.citation):
        key = next((keys[id_] for id_ in entry["ids"] if id_ in keys), None)
        pages = {
            ref.docname
            for ref in domain.citation_refs
            if key in {target.key for target in ref.targets}
        } - {*BACK_MATTER}
        if not pages:
            continue
        words = nodes.inline("", " Cited in ", classes=["cited-in"])
        for i, page in enumerate(sorted(pages, key=order.__getitem__)):
            title = app.env.titles[page].astext().partition(":")[0]
            uri = app.builder.get_relative_uri(docname, page)
            words += nodes.Text(", " if i else "")
            words += nodes.reference("", title, refuri=uri, internal=True)
        words += nodes.Text(".")
        entry.children[-1].append(words)


def setup(app: Sphinx) -> dict[str, object]:
    """Register both styles under the name `author_year_round`."""
    register_plugin("pybtex.style.formatting", "author_year_round", AuthorYearStyle)
    register_reference_style(
        "sphinxcontrib.bibtex.style.referencing", "author_year_round", RoundAuthorYear
    )
    app.connect("doctree-resolved", name_chapters)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
