"""What every page of the web should have, and nothing that it does not use.

A description and a preview picture for whoever shares the page, the version, date and
way to cite in the footer, how to run a notebook, and fewer scripts: the theme loads its
icons as a font and once more as a script, and MathJax with a menu of its own.

Whoever hosts the book says where, by two variables of the environment: BOOK_URL, the
address of the built book, and BOOK_REPOSITORY, that of the sources. Without them no
page names an address. Notebooks that `make notebooks` made before the book become part
of it, and pages link to them.
"""

from __future__ import annotations

import html
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docutils import nodes
from interactive import rendered
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.index_entries import split_index_msg

import d2lmulti
from d2lmulti_book.notebook import TABS

NOTEBOOKS = "_build/notebooks"  # of tools/take_away.py
# Colab opens notebooks that are in a repository on GitHub: here, in the branch from
# which GitHub Pages shows the built book.
GITHUB, COLAB = "https://github.com/", "https://colab.research.google.com/github/"
BRANCH = "gh-pages"
MAX_DESCRIPTION = 200  # characters; search engines show no more
PREVIEW = (  # of a page without a picture
    "_static/three-ways.png",
    "Three ways to split four layers over two devices: by data, by layer, by stage.",
)
SENTENCE_END = re.compile(r"(?<=[.?]) (?=[A-Z])")
# The icons once more, as a script, and two fonts that hold none of the book's icons.
UNUSED = re.compile(
    r'<script src="[^"]*fontawesome[^"]*\.js[^"]*"></script>\n?'
    r'|<link rel="preload"[^>]*fa-(?:brands|regular)-[^>]*>\n?'
)
# Names, and where a long one may go on in the next line.
NAME = re.compile(r'(?<=<span class="pre">)[^<]+(?=</span>)')
JOINT = re.compile(r'(?<=\w[._(,=\[/])(?=[A-Za-z"]|&quot;)|(?<=::)(?=\w)')
SIGN = re.compile(r'(<span class="[op]">[^<]*[(.,]</span>)(?=\S)')
# In a diff, without markup.
BARE_SIGN = re.compile(r'(?<=[(.,])(?=[A-Za-z_"]|&quot;)|(?<=, )(?=\S)')
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")  # only where nothing else breaks a name
LONG_NAME = 28  # letters; a column of the cheat sheet has fewer
# A block of code; what a cell prints has other classes before `highlight-`.
TAG = re.compile(r"<[^>]*>")
SHORT = 36  # letters that a line has on a telephone
CODE = re.compile(
    r'(<div class="highlight-\w+ notranslate"><div class="highlight"><pre>)'
    r'((?:(?!</pre>|<span class="code-line").)*)</pre>',
    re.DOTALL,
)


# A number and its unit stay in one line.
PARAGRAPH = re.compile(r"<p>(?:(?!</p>).)*</p>", re.DOTALL)
BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[kMGT]B|ms|µs)(?!\w))")


def with_units(paragraph: re.Match[str]) -> str:
    """Keep a number and its unit together."""
    return BEFORE_UNIT.sub("\u00a0", paragraph[0])


def with_lines(block: re.Match[str]) -> str:
    """Wrap each long line of a block of code, with its indentation.

    On a telephone it goes on below itself, a little to the right.
    """
    opening, code = block.groups()
    lines = []
    for line in code.splitlines(keepends=True):
        text = html.unescape(TAG.sub("", line.removesuffix("\n")))
        indent = len(text) - len(text.lstrip(" "))
        if len(text) > SHORT:
            style = f' style="--indent:{indent}"' * bool(indent)
            line = SIGN.sub(r"\1<wbr>", line)
            if "udiff" in opening:
                line = BARE_SIGN.sub("<wbr>", line)
            line = f'<span class="code-line"{style}>{line}</span>'
        lines.append(line)
    return f"{opening}{''.join(lines)}</pre>"


def with_breaks(name: re.Match[str]) -> str:
    """Let a name break after a dot, an underscore and so on, a long one inside."""
    broken = JOINT.sub("<wbr>", name[0])
    return CAMEL.sub("<wbr>", broken) if len(name[0]) > LONG_NAME else broken


# What a screen reader or a keyboard cannot use in the pages of Sphinx and the theme.
REPAIRS: dict[re.Pattern[str], str | Callable[[re.Match[str]], str]] = {
    UNUSED: "",
    # Names in code have the color of the code around them.
    re.compile(r'<span class="n">([^<]*)</span>'): r"\1",
    # The theme repeats what Sphinx says of the window, and the book's own name.
    re.compile(r'<meta name="viewport" content="[^"]*initial-scale=1" ?/>\n?'): "",
    re.compile(r"<title>(.*) &#8212; \1</title>"): r"<title>\1</title>",
    re.compile(r'<div class="pst-scrollable-table-container">'): (
        '<div class="pst-scrollable-table-container" tabindex="0">'
    ),
    re.compile(r'<div role="list" class="citation-list">'): (
        '<div class="citation-list">'
    ),
    # The space before a link to an exercise is no part of the link.
    re.compile(r'(<a class="reference internal" href="[^"]*">) '): r" \1",
    # Chinese terms are read aloud and drawn as Chinese.
    re.compile(r'(?<!lang="zh">)(?<![\u4e00-\u9fff])[\u4e00-\u9fff]+'): (
        r'<span lang="zh">\g<0></span>'
    ),
    CODE: with_lines,
    PARAGRAPH: with_units,
    NAME: with_breaks,
    re.compile(r'<summary>(?=<span class="toctree-toggle")'): (
        '<summary aria-label="Pages below this one">'
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
# On a page without a formula, which may still be asked to draw some.
NO_FORMULA = re.compile(
    r"<script>window\.MathJax = .*?</script>\s*"
    r"<script[^>]*mathjax/startup\.js[^>]*></script>\n?"
)
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
    made = (Path(app.srcdir) / NOTEBOOKS).glob("*/*.ipynb")
    # Where this differs from the last build, Sphinx writes all pages again.
    config.take_away = sorted(f"{path.parent.name}/{path.stem}" for path in made)
    config.mathjax_path = "mathjax/startup.js"
    config.mathjax3_config = MATHJAX


def described(doctree: nodes.document) -> str:
    """Return the question of a page and what fits before it, or its first sentences."""
    paragraphs = [p.astext() for p in doctree.findall(nodes.paragraph)]
    asked = [p for p in paragraphs if p.startswith("The question.")]
    text = " ".join([*asked, *paragraphs, ""][0].split())
    sentences = SENTENCE_END.split(text.removeprefix("The question. "))
    last = next((i for i, s in enumerate(sentences) if s.endswith("?")), None)
    joined = [""]
    before = last is not None and len(" ".join(sentences)) > MAX_DESCRIPTION
    for sentence in sentences[last::-1] if before else sentences:
        pair = [sentence, joined[-1]] if before else [joined[-1], sentence]
        longer = " ".join(pair).strip()
        if len(longer) > MAX_DESCRIPTION:
            break
        joined.append(longer)
    cut = sentences[last or 0][: MAX_DESCRIPTION - 2]
    return joined[-1] or cut and f"{cut} …"


def tags(app: Sphinx, page: str, doctree: nodes.document) -> str:
    """Write the tags for whoever shares or finds a page."""
    facts = {
        "og:title": app.env.titles[page].astext(),
        "og:type": "article",
        "og:site_name": app.config.html_title,
        "og:description": described(doctree),
    }
    base = app.config.html_baseurl
    pictures = [image for image in doctree.findall(nodes.image) if "uri" in image]
    if base:
        facts["og:url"] = f"{base}/{page}.html"
    if base:
        preview, alt = PREVIEW
        if pictures:
            uri, alt = pictures[0]["uri"], pictures[0].get("alt", "")
            name = app.builder.images.get(uri, Path(uri).name)
            preview = f"{app.builder.imagedir}/{name}"
        facts["og:image"] = f"{base}/{preview}"
        facts["og:image:alt"] = " ".join(alt.split())
    quoted = {key: html.escape(text) for key, text in facts.items()}
    lines = [
        f'<meta property="{key}" content="{text}">' for key, text in quoted.items()
    ]
    if base:  # X shows a large picture only if it is asked to
        lines.append('<meta name="twitter:card" content="summary_large_image">')
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
        name = page.rpartition("/")[2]
        taken = {
            key: f"{up}notebooks/{key}/{name}.ipynb"
            for key in TABS
            if f"{key}/{name}" in app.config.take_away
        }
        context["body"] += run_it(app, page, taken)
        if taken:
            change_buttons(app, context, taken)


def run_it(app: Sphinx, page: str, taken: dict[str, str]) -> str:
    """Say how to run a notebook; `taken` has what there is of it to take away."""
    # Where the book is hosted, the notebook takes the wheel from there.
    wheels = (
        () if app.config.html_baseurl else Path(app.srcdir, NOTEBOOKS).glob("*.whl")
    )
    return rendered(
        "run_it.html",
        page=page,
        name=page.rpartition("/")[2],
        up="../" * page.count("/"),
        setup="chapters/setup" in app.env.found_docs,
        taken=taken,
        tabs=TABS,
        wheel=next((path.name for path in wheels), ""),
    )


def change_buttons(app: Sphinx, context: dict[str, Any], taken: dict[str, str]) -> None:
    """Let the buttons at the top offer the notebooks to take away, and launch one."""
    groups = {group.get("label"): group for group in context["header_buttons"]}
    download = groups["download-buttons"]
    # The notebook as it is in the repository does not run elsewhere.
    others = [button for button in download["buttons"] if button["text"] != ".ipynb"]
    notebooks = [
        {
            "type": "link",
            "url": path,
            "text": f"{TABS[key]} .ipynb",
            "icon": "fas fa-code",
            "tooltip": f"Download the notebook for {TABS[key]}",
            "label": f"download-{key}-button",
        }
        for key, path in taken.items()
    ]
    download["buttons"] = notebooks + others
    repository = app.config.html_theme_options.get("repository_url", "")
    if app.config.html_baseurl and repository.startswith(GITHUB) and "torch" in taken:
        path = taken["torch"].replace("../", "")
        colab = {
            "type": "link",
            "url": f"{COLAB}{repository.removeprefix(GITHUB)}/blob/{BRANCH}/{path}",
            "text": "Colab (PyTorch)",
            "icon": "fas fa-play",
            "tooltip": "Run this page in Colab",
        }
        context["header_buttons"].append(
            {
                "type": "group",
                "tooltip": "Run this page",
                "icon": "fas fa-rocket",
                "buttons": [colab],
                "label": "launch-buttons",
            }
        )


def publish_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Copy the notebooks to take away, and their wheel, into the built book."""
    if error or app.builder.format != "html":
        return
    published = Path(app.outdir) / "notebooks"
    shutil.rmtree(published, ignore_errors=True)
    if app.config.take_away:
        shutil.copytree(Path(app.srcdir) / NOTEBOOKS, published)


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


def is_bare_field(app: Sphinx, what: str, name: str, obj: object, *rest: Any) -> Any:
    """Skip the fields of named tuples in the reference: the signature has them."""
    return str(getattr(obj, "__doc__", "")).startswith("Alias for field number") or None


# Defaults that have no literal, as autodoc writes them; Sphinx could not read them.
NO_LITERAL = {re.compile(r"<factory>"): "...", re.compile(r"<[\w-]+ (\w+)>"): r"\1"}


def with_literals(
    app: Sphinx, what: str, name: str, obj: object, options: Any, said: str, to: Any
) -> tuple[str, Any] | None:
    """Write the signature of a data class so that Sphinx can read it."""
    if not said or "<" not in said:
        return None
    for pattern, instead in NO_LITERAL.items():
        said = pattern.sub(instead, said)
    return said, to


def link_chapters(
    app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Link the chapters that a module's docstring names, as in *allreduce*."""
    if what == "module":
        for place, line in enumerate(lines):
            for chapter in re.findall(r"\*(\w+)\*", line):
                if f"chapters/{chapter}" in app.env.found_docs:
                    link = f":doc:`/chapters/{chapter}`"
                    lines[place] = lines[place].replace(f"*{chapter}*", link)


def repair(app: Sphinx, error: Exception | None) -> None:
    """Take out of the built pages what they do not use; let everyone use the rest."""
    if error or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        better = text
        for pattern, instead in REPAIRS.items():
            better = pattern.sub(instead, better)
        if 'class="math' not in text:
            better = NO_FORMULA.sub("", better)
        if better != text:
            path.write_text(better, encoding="utf-8")


def write_root(app: Sphinx, error: Exception | None) -> None:
    """Lead from the first address of the book to its first page, and describe that."""
    root = app.config.root_doc
    page = Path(app.outdir) / f"{root}.html"
    if error or app.builder.format != "html" or "/" not in root or not page.exists():
        return
    head = page.read_text(encoding="utf-8").partition("<body")[0]
    kept = re.findall(
        r"<title>.*</title>|<meta [^>]*>|<link rel=\"canonical\"[^>]*>", head
    )
    lines = "\n".join(dict.fromkeys(kept))
    link = f'<a href="{root}.html">{html.escape(app.config.html_title)}</a>'
    (Path(app.outdir) / "index.html").write_text(
        f'<!DOCTYPE html>\n<html lang="{app.config.language}">\n<head>\n{lines}\n'
        f'<meta http-equiv="refresh" content="0; url={root}.html">\n</head>\n'
        f"<body><main><h1>{link}</h1></main></body>\n</html>\n",
        encoding="utf-8",
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_config_value("take_away", [], "html")
    app.connect("config-inited", configure, priority=900)
    app.connect("html-page-context", dress, priority=900)
    app.connect("html-collect-pages", list_terms)
    app.connect("autodoc-skip-member", is_bare_field)
    app.connect("autodoc-process-signature", with_literals)
    app.connect("autodoc-process-docstring", link_chapters)
    app.connect("build-finished", repair)
    app.connect("build-finished", publish_notebooks)
    app.connect("build-finished", write_root, priority=900)  # over a bare one
    return {"parallel_read_safe": True, "parallel_write_safe": True}
