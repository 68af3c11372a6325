"""Turn the MyST of a chapter into Markdown that Jupyter and Colab show.

Directives become text, quotations, or code; roles become text, with a link where an
address is known. No link is relative: a notebook is read far from the book's pages.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from author_year import AuthorYearStyle
from pybtex.database import parse_file
from sphinx.config import Config
from sphinx.directives.code import LiteralIncludeReader

EXTENSIONS = Path(__file__).resolve().parents[1] / "_ext"
OPENING = re.compile(r"(`{3,}|:{3,}|~{3,})(?:\{([\w-]+)\})?[ \t]*(.*)")
OPTION = re.compile(r":([\w-]+):[ \t]*(.*)")
API = ("attr", "class", "data", "exc", "func", "meth", "mod")
ROLES = "|".join(("cite", "doc", "math", "numref", "ref", "term", *API))
ROLE = re.compile(rf"\{{(?:py:)?({ROLES})\}}`([^`]+)`")
TARGET = re.compile(r"^\(([\w-]+)\)=\n(?:\n*#+ (.*))?", re.M)
# The figures that only a page can run: the directives of the book's own extensions.
INTERACTIVE = {
    name
    for path in EXTENSIONS.glob("*.py")
    for name in re.findall(r'add_directive\("([\w-]+)"', path.read_text("utf-8"))
}
QUOTED = ("admonition", "note", "tip", "warning")
DROPPED = ("exercise-end", "index", "solution-end")


class NotPlain(Exception):
    """A directive or a reference that this file does not know."""


@dataclass(frozen=True)
class Label:
    """What a label stands for: its page and what a text calls it, `Figure 2`."""

    page: str
    words: str


@dataclass(frozen=True)
class Directive:
    """A fenced directive: what follows its name, its options, and its content."""

    name: str
    argument: str
    options: dict[str, str]
    body: str


@dataclass
class Book:
    """What pages refer to, and the address of the hosted book, if there is one.

    `terms` has those of the glossary, by themselves in lower case.
    """

    folder: Path
    url: str = ""
    titles: dict[str, str] = field(default_factory=dict)
    terms: dict[str, str] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)
    cited: dict[str, str] = field(default_factory=dict)

    def link(self, text: str, page: str, anchor: str = "") -> str:
        """Link a text to a page of the hosted book; without an address, return it."""
        if not self.url:
            return text
        anchor = anchor and "#" + anchor
        return f"[{text}]({self.url}/chapters/{page}.html{anchor})"


def read_book(folder: Path, url: str = "") -> Book:
    """Read what the chapters of a folder refer to."""
    book = Book(folder, url.rstrip("/"))
    for path in sorted(folder.rglob("*.md")):
        page = path.relative_to(folder).with_suffix("").as_posix()
        note_targets(book, page, path.read_text(encoding="utf-8"))
    for path in sorted(folder.glob("*.ipynb")):
        note_labels(book, path.stem, nbformat.read(path, as_version=4))
    glossary = (folder / "glossary.md").read_text(encoding="utf-8")
    for term in re.findall(r"^[\w(].*(?=\n(?:\w.*\n)* +\S)", glossary, re.M):
        book.terms[term.lower()] = term
    entries = parse_file(folder / "references.bib").entries.values()
    for entry in AuthorYearStyle().format_entries(entries):
        book.cited[entry.key] = entry.label
    return book


def note_targets(book: Book, page: str, source: str) -> None:
    """Note the title of a page and the targets above its headings."""
    for label, heading in TARGET.findall(source):
        book.labels[label] = Label(page, heading)
    if page not in book.titles and (title := re.search(r"^# (.*)", source, re.M)):
        book.titles[page] = title[1]


def note_labels(book: Book, page: str, nb: Any) -> None:
    """Note what a notebook defines; number figures, tables, exercises in order."""
    figures = tables = exercises = 0
    for cell in nb.cells:
        names = []
        if cell.cell_type == "markdown":
            note_targets(book, page, cell.source)
            parts = split(cell.source)
            for part in (p for p in parts if isinstance(p, Directive)):
                if part.name == "exercise-start":
                    exercises += 1
                    words = f"Exercise {exercises}"
                    book.labels[part.options["label"]] = Label(page, words)
                elif part.name == "table":
                    tables += 1
                    label = Label(page, f"Table {tables}")
                    book.labels[part.options["name"]] = label
                elif part.name in INTERACTIVE and "name" in part.options:
                    names.append(part.options["name"])
        elif figure := cell.metadata.get("mystnb", {}).get("figure"):
            names.append(figure.get("name", cell.id))
        for name in names:
            figures += 1
            book.labels[name] = Label(page, f"Figure {figures}")


def split(source: str) -> list[str | Directive]:
    """Split a text into its directives and what stands between them, code included."""
    parts: list[str | Directive] = []
    text: list[str] = []
    lines = source.split("\n")
    while lines:
        line = lines.pop(0)
        opening = OPENING.fullmatch(line)
        if not opening:
            text.append(line)
            continue
        inside = []
        while lines and not re.fullmatch(rf"{opening[1]}+[ \t]*", lines[0]):
            inside.append(lines.pop(0))
        closing = lines.pop(0) if lines else ""
        if not opening[2]:  # code
            parts += ["\n".join(text), "\n".join([line, *inside, closing])]
        else:
            options = {}
            while inside and (option := OPTION.fullmatch(inside[0])):
                options[option[1]] = option[2]
                inside.pop(0)
            body = "\n".join(inside).strip()
            directive = Directive(opening[2], opening[3].strip(), options, body)
            parts += ["\n".join(text), directive]
        text = []
    return [*parts, "\n".join(text)]


def plain(source: str, page: str, book: Book) -> str:
    """Return the Markdown of one cell without directives, targets and roles."""
    written = []
    for part in split(source):
        if isinstance(part, Directive):
            written.append(directive_text(part, page, book))
        elif OPENING.match(part):
            written.append(part)
        else:
            words = TARGET.sub(lambda found: found[0].partition("\n")[2], part)
            written.append(without_roles(words, page, book))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(written)).strip()


def without_roles(text: str, page: str, book: Book) -> str:
    """Replace the roles of a text by words and absolute links."""
    return ROLE.sub(lambda found: role_text(found[1], found[2], page, book), text)


def role_text(role: str, content: str, page: str, book: Book) -> str:
    """Return what stands in the place of a role."""
    if role == "math":
        return f"${content}$"
    if role in API:
        name = content.rpartition(".")[2] if content.startswith("~") else content
        return f"`{name}{'()' * (role in ('func', 'meth'))}`"
    if role == "cite":
        keys = [key.strip() for key in content.split(",")]
        words = "; ".join(known(book.cited, key, "reference") for key in keys)
        return book.link(f"({words})", "references")
    titled = re.fullmatch(r"(.*?)\s*<(.*)>", content, re.S)
    words, target = titled.groups() if titled else ("", content)
    if role == "term":
        term = known(book.terms, " ".join(target.lower().split()), "term")
        anchor = re.sub(r"[^A-Za-z0-9]+", "-", term)
        return book.link(words or target, "glossary", f"term-{anchor}")
    if role == "doc":
        title = known(book.titles, target, "page")
        return book.link(words or f"*{title}*", target)
    label = known(book.labels, target, "label")
    if label.page == page:  # some cells above or below; Jupyter knows no such anchor
        return words or label.words
    title = book.titles[label.page]
    return book.link(words or f"{label.words} of *{title}*", label.page, target)


def known(names: dict[str, Any], name: str, kind: str) -> Any:
    """Look a name up; raises NotPlain."""
    if name not in names:
        raise NotPlain(f"no page has the {kind} {name!r}")
    return names[name]


def directive_text(directive: Directive, page: str, book: Book) -> str:
    """Return what stands in the place of a directive."""
    name, options = directive.name, directive.options
    if name in DROPPED:
        return ""
    body = without_roles(directive.body, page, book)
    title = without_roles(directive.argument, page, book)
    if name == "exercise-start":
        number = book.labels[options["label"]].words
        return f"\n**{number}{f' ({title})' if title else ''}.**\n"
    if name == "solution-start":
        return f"\n**Solution to {known(book.labels, title, 'exercise').words}.**\n"
    if name == "table":
        return f"\n**{book.labels[options['name']].words}.** {title}\n\n{body}\n"
    if name in QUOTED:
        quoted = f"**{title or name.capitalize()}**\n\n{body}"
        return "\n" + textwrap.indent(quoted, "> ", lambda line: True) + "\n"
    if name in INTERACTIVE:
        label = options.get("name", "")
        number = book.labels[label].words if label else "A figure"
        where = book.link("the page of the book", page, label)
        return f"\n*{number}, which runs only on {where}:* {body}\n"
    if name == "literalinclude":
        path = book.folder / directive.argument
        languages = {".py": "python", ".sbatch": "bash"}
        language = options.get("language") or languages[path.suffix]
        return f"\n```{language}\n{included(path, options)}\n```\n"
    raise NotPlain(f"{page}: no plain form of the directive {name!r} is known")


def included(path: Path, options: dict[str, str]) -> str:
    """Return the lines of a file that a `literalinclude` asks for."""
    asked: dict[str, Any] = {**options}
    if "dedent" in options:
        asked["dedent"] = int(options["dedent"] or 0) or None
    text, _ = LiteralIncludeReader(str(path), asked, Config()).read()
    return text.strip("\n")
