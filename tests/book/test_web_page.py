"""Every page says what it is to whoever finds it, and loads nothing that it leaves."""

import re

import web_page
from book.conftest import build_book, page
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils import new_document

import d2lmulti


def meta(soup):
    tags = soup.find_all("meta", content=True)
    return {tag.get("name") or tag.get("property"): tag["content"] for tag in tags}


def test_a_page_describes_itself_and_names_version_and_licence(small_book):
    one = page(small_book, "one")
    facts = meta(one)
    assert facts["description"].startswith("A mini-batch of")
    assert len(facts["description"]) <= 200
    assert facts["og:title"] == "Data parallelism"
    assert facts["og:description"] == facts["description"]
    footer = one.find("footer", class_="bd-footer-content").get_text()
    assert f"Version {d2lmulti.__version__}." in footer
    assert "Last updated on" in footer and "CC BY 4.0" in footer
    assert "make lab" in one.find("p", class_="run-it").get_text()
    assert page(small_book, "glossary").find("p", class_="run-it") is None


def described(*paragraphs):
    document = new_document("page")
    document += [nodes.paragraph(text=text) for text in paragraphs]
    return web_page.described(document)


def test_a_description_has_the_question_and_what_fits_before_it():
    long = "The question. " + "We have a large batch. " * 9
    asked = long + "How large is it? And why?"
    assert described("Not this.", asked) == (
        "We have a large batch. " * 8 + "How large is it?"
    )
    assert described("The question. Small. How? A guess.") == "Small. How? A guess."
    assert described("No question. " + "Words and words. " * 12).count(".") == 12
    cut = described("word " * 99)
    assert cut.endswith(" …") and len(cut) <= 200
    assert described() == ""


def test_the_first_address_describes_the_book_and_leads_to_it(small_book):
    soup = BeautifulSoup((small_book / "index.html").read_text("utf-8"), "html.parser")
    assert soup.title.get_text() == "A small book — Multi-GPU Training from Scratch"
    assert meta(soup).items() >= meta(page(small_book, "index")).items()
    assert soup.find("meta", {"http-equiv": "refresh"})["content"] == (
        "0; url=chapters/index.html"
    )
    assert soup.main.find("a")["href"] == "chapters/index.html"


def test_a_page_has_one_window_and_its_own_title_once(small_book):
    for name in ("index", "one", "glossary"):
        assert len(page(small_book, name).find_all("meta", {"name": "viewport"})) == 1
    title = "<title>A book &#8212; A book</title>"
    for pattern, instead in web_page.REPAIRS.items():
        title = pattern.sub(instead, title)
    assert title == "<title>A book</title>"


def test_without_an_address_no_page_names_one(small_book):
    facts = meta(page(small_book, "one"))
    assert not {"og:url", "og:image"} & set(facts)
    assert not page(small_book, "one").find(class_="dropdown-source-buttons")
    assert not page(small_book, "one").find(class_="dropdown-launch-buttons")
    assert not (small_book / "notebooks").exists()


def test_icons_are_loaded_once_and_formulas_without_a_menu(small_book):
    for name in ("one", "two", "glossary"):
        html = (small_book / "chapters" / f"{name}.html").read_text(encoding="utf-8")
        assert not re.search(r"<script[^>]*fontawesome", html)
        assert "fa-brands-400" not in html and "fa-solid-900" in html
        assert "scorer.js" not in html
    assert "mathjax/startup.js" in str(page(small_book, "one"))
    for name in ("index", "two", "glossary"):
        assert "mathjax/" not in str(page(small_book, name))


def test_whoever_hosts_the_book_sets_its_address(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_URL", "https://book.example.org/")
    monkeypatch.setenv("BOOK_REPOSITORY", "https://github.com/someone/book")
    for key in ("torch", "mxnet"):
        (tmp_path / "_build" / "notebooks" / key).mkdir(parents=True)
        (tmp_path / "_build" / "notebooks" / key / "one.ipynb").write_text("{}")
    book = build_book(tmp_path)
    soup = page(book, "one")
    facts = meta(soup)
    assert facts["og:url"] == "https://book.example.org/chapters/one.html"
    assert re.match(r"https://book.example.org/_images/.*\.png", facts["og:image"])
    assert facts["twitter:card"] == "summary_large_image"
    assert facts["og:image:alt"] == "A red rectangle."
    drawn = meta(page(book, "glossary"))["og:image"]  # it has no picture of its own
    assert drawn == "https://book.example.org/_static/three-ways.png"
    assert (book / "_static" / "three-ways.png").exists()
    assert soup.find("a", href="https://github.com/someone/book")
    downloads = soup.find(class_="dropdown-download-buttons").find_all("a", href=True)
    offered = [link["href"] for link in downloads if ".ipynb" in link["href"]]
    assert offered[:2] == [
        "../notebooks/torch/one.ipynb",
        "../notebooks/mxnet/one.ipynb",
    ]
    assert (book / "notebooks" / "mxnet" / "one.ipynb").exists()
    (colab,) = soup.find(class_="dropdown-launch-buttons").find_all("a", href=True)
    assert colab["href"] == (
        "https://colab.research.google.com/github/someone/book/blob/gh-pages/"
        "notebooks/torch/one.ipynb"
    )
    assert not page(book, "two").find(class_="dropdown-launch-buttons")


def test_lines_of_code_keep_their_indentation_and_names_break_at_joints():
    """Both may meet pages that the last build has repaired already."""
    name = '<td><code><span class="pre">dist.all_reduce(x,</span></code></td>'
    long = '    <span class="n">f</span><span class="p">(</span>' + "x" * 40
    block = (
        '<div class="highlight-python notranslate"><div class="highlight"><pre>'
        f'<span></span><span class="k">if</span> x:\n{long}\n</pre></div></div>'
    )
    once = name + block + "<p>Of <b>4</b> GB 3.5 % and 12 ms: 显存 (GPU)</p>"
    for pattern, instead in web_page.REPAIRS.items():
        once = pattern.sub(instead, once)
    twice = once
    for pattern, instead in web_page.REPAIRS.items():
        twice = pattern.sub(instead, twice)
    assert twice == once
    assert "GB 3.5\u00a0% and 12\u00a0ms" in once
    assert ': <span lang="zh">显存</span> (GPU)' in once
    assert "dist.<wbr>all_<wbr>reduce(<wbr>x," in once
    soup = BeautifulSoup(once, "html.parser")
    (line,) = soup.find_all("span", class_="code-line")
    assert line.get_text() == f"    f({'x' * 40}\n"
    assert line["style"] == "--indent:4"
    assert soup.find("pre").get_text() == f"if x:\n{line.get_text()}"
