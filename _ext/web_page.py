"""What every page of the web should have, and nothing that it does not use.

A description and a preview picture for whoever shares the page, the version, date and
way to cite in the footer, how to run a notebook, and fewer scripts: the theme loads its
icons as a font and once more as a script, and MathJax with a menu of its own.

Whoever hosts the book says where, by two variables of the environment: BOOK_URL, the
address of the built book, and BOOK_REPOSITORY, that of the sources. Without them no
page names an address.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.index_entries import split_index_msg

import d2lmulti

MAX_DESCRIPTION = 200  # characters; search engines show no more
# The icons once more, as a script, and two fonts that hold none of the book's icons.
UNUSED = re.compile(
    r'<script src="[^"]*fontawesome[^"]*\.js[^"]*"></script>\n?'
    r'|<link rel="preload"[^>]*fa-(?:brands|regular)-[^>]*>\n?'
)
# What a screen reader or a keyboard cannot use in the pages of Sphinx and the theme.
REPAIRS: dict[re.Pattern[str], str | Callable[[re.Match[str]], str]] = {
    UNUSED: "",
    re.compile(r'<div class="pst-scrollable-table-container">'): (
        '<div class="pst-scrollable-table-container" tabindex="0">'
    ),
    re.compile(r'<div role="list" class="citation-list">'): (
        '<div class="citation-list">'
    ),
    # The parameters of a long signature are a list of definitions without terms.
    re.compile(
        r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>'
    ): lambda found: (
        '<span class="sig-lines">\n'
        + found[1]
        .replace("<dd>", '<span class="sig-line">')
        .replace("</dd>", "</span>")
        + "</span>"
    ),
}
# MathJax in parts, without its menu: half of the size.
MATHJAX = {
    "loader": {"load": ["core", "input/tex", "output/chtml"]},
    "options": {"processHtmlClass": "tex2jax_process|mathjax_process|math|output_area"},
}


def configure(app: Sphinx, config: Config) -> None:
    """Set what depends on the version, the day, and on who hosts the book."""
    options = config.html_theme_options
    options["extra_footer"] = (
        f"Version {d2lmulti.__version__}. {options.get('extra_footer', '')} "
        '<a href="{up}chapters/index.html#how-to-cite">How to cite</a>.'
    )
    config.html_last_updated_fmt = "%B %d, %Y"
    config.html_baseurl = os.environ.get("BOOK_URL", "").rstrip("/")
    if repository := os.environ.get("BOOK_REPOSITORY"):
        options["repository_url"] = repository.rstrip("/")
        options["use_repository_button"] = options["use_issues_button"] = True
    config.mathjax_path = "mathjax/startup.js"
    config.mathjax3_config = MATHJAX


def described(doctree: nodes.document) -> str:
    """Return the question of a page, or its first sentences."""
    paragraphs = [p.astext() for p in doctree.findall(nodes.paragraph)]
    asked = [p for p in paragraphs if p.startswith("The question.")]
    text = " ".join([*asked, *paragraphs, ""][0].split())
    text = text.removeprefix("The question. ")
    if len(text) <= MAX_DESCRIPTION:
        return text
    whole = re.match(rf".{{40,{MAX_DESCRIPTION}}}[.?](?= )", text)  # sentences
    return whole[0] if whole else text[: MAX_DESCRIPTION - 2] + " …"


def tags(app: Sphinx, page: str, doctree: nodes.document) -> str:
    """Write the tags for whoever shares or finds a page."""
    facts = {
        "og:title": app.env.titles[page].astext(),
        "og:type": "article",
        "og:site_name": app.config.html_title,
        "og:description": described(doctree),
    }
    base = app.config.html_baseurl
    pictures = [
        image["uri"] for image in doctree.findall(nodes.image) if "uri" in image
    ]
    if base:
        facts["og:url"] = f"{base}/{page}.html"
    if base and pictures:
        name = app.builder.images.get(pictures[0], Path(pictures[0]).name)
        facts["og:image"] = f"{base}/{app.builder.imagedir}/{name}"
    quoted = {key: html.escape(text) for key, text in facts.items()}
    lines = [
        f'<meta property="{key}" content="{text}">' for key, text in quoted.items()
    ]
    return "\n".join(
        [f'<meta name="description" content="{quoted["og:description"]}">', *lines]
    )


def dress(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Add the tags, the footer's facts, and how to run a notebook."""
    up = "../" * page.count("/")
    footer = context.get("theme_extra_footer", "")
    context["theme_extra_footer"] = footer.replace("{up}", up)
    if doctree is None:
        return
    context["metatags"] = context.get("metatags", "") + tags(app, page, doctree)
    if app.env.doc2path(page).endswith(".ipynb"):
        setup = "Setup"
        if "chapters/setup" in app.env.found_docs:
            setup = f'<a href="{up}chapters/setup.html">Setup</a>'
        context["body"] += (
            '<p class="run-it"><strong>Run this page.</strong> In a clone of the '
            f"repository, <code>make lab</code> opens it as <code>{page}.ipynb</code>. "
            f"Or download it with the button at the top; {setup} says what it needs."
            "</p>"
        )


def list_terms(app: Sphinx) -> list[Any]:
    """Let the search find the terms of all pages; yield no page.

    Sphinx forgets the terms of pages that it does not write again.
    """
    terms = app.env._search_index_index_entries
    for page, entries in app.env.get_domain("index").entries.items():
        found = {
            (term, target or "", main or "")
            for kind, words, target, main, _ in entries
            for term in split_index_msg(kind, words)
        }
        terms.setdefault(page, sorted(found))
    return []


def repair(app: Sphinx, error: Exception | None) -> None:
    """Take out of the built pages what they do not use; let everyone use the rest."""
    if error or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        better = text
        for pattern, instead in REPAIRS.items():
            better = pattern.sub(instead, better)
        if better != text:
            path.write_text(better, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("config-inited", configure, priority=900)
    app.connect("html-page-context", dress, priority=900)
    app.connect("html-collect-pages", list_terms)
    app.connect("build-finished", repair)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
