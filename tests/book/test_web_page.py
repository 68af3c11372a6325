"""Every page says what it is to whoever finds it, and loads nothing that it leaves."""

import re

from book.conftest import build_book
from bs4 import BeautifulSoup

import d2lmulti


def page(book, name):
    html = (book / "chapters" / f"{name}.html").read_text(encoding="utf-8")
    return BeautifulSoup(html, "html.parser")


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
