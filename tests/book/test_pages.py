"""What the settings and extensions of the book make of notebooks."""

import importlib
import re

import pytest
from book.conftest import page
from book.notebooks import ROOT


def tab_sets(soup):
    """Per tab set: (label, sync key, text of the tab), in order."""
    return [
        [
            (
                label.get_text(strip=True),
                (label["data-sync-group"], label["data-sync-id"]),
                label.find_next_sibling("div", class_="sd-tab-content").get_text(),
            )
            for label in tabs.find_all("label", class_="sd-tab-label", recursive=False)
        ]
        for tabs in soup.find_all("div", class_="code-tabs")
    ]


def test_adjacent_tab_cells_become_one_synced_set_in_the_order_of_the_book(small_book):
    sets = tab_sets(page(small_book, "one"))
    assert len(sets) == 3  # the last in a hidden solution
    for tabs in sets:
        assert [label for label, _, _ in tabs] == ["PyTorch", "MXNet", "Paddle"]
        assert [sync for _, sync, _ in tabs] == [
            ("framework", key) for key in ("torch", "mxnet", "paddle")
        ]
    torch, mxnet, _ = (text for _, _, text in sets[0])
    order = ["import torch", "printed by torch", "more = ", "more of torch"]
    found = [torch.index(words) for words in order]
    assert found == sorted(found)  # each output under its own cell
    assert mxnet.split() == ["import", "mxnet", "printed", "by", "mxnet"]
    assert "dropdown" in page(small_book, "one").find("div", class_="solution")["class"]


@pytest.mark.browser
def test_a_chosen_tab_stays_chosen_on_the_next_page(visit, small_book):
    one, two = (small_book / "chapters" / f"{name}.html" for name in ("one", "two"))
    page = visit(one)
    # Formulas move what stands below them: a click would miss it.
    page.evaluate("MathJax.startup.promise.then(() => null)")
    page.locator("label.sd-tab-label", has_text="MXNet").first.click()
    for following in (None, one, two):
        if following:
            page.goto(following.as_uri())
        contents = page.locator(".code-tabs > .sd-tab-content")
        shown = contents.evaluate_all(
            "all => all.filter((e) => getComputedStyle(e).display !== 'none')"
            ".map((e) => e.previousElementSibling.dataset.syncId)"
        )
        assert shown == ["mxnet"] * page.locator(".code-tabs").count() != []


def test_a_figure_has_number_caption_alt_text_and_can_be_referred_to(small_book):
    figure = page(small_book, "one").find("figure", id="fig-bytes")
    assert figure.find("img")["alt"] == "A red rectangle."
    caption = figure.find("figcaption").get_text()
    assert re.match(r"\s*Figure 1\.1\s+Bytes moved\.", caption), caption
    for name in ("one", "two"):
        link = page(small_book, name).find("a", href=re.compile("#fig-bytes$"))
        assert link.get_text() == "Figure 1.1"


def test_citations_and_terms_are_links_in_words(small_book):
    one = page(small_book, "one")
    assert "(Goyal et al., 2017)" in one.get_text()
    assert one.find("a", href="glossary.html#term-mini-batch")
    references = page(small_book, "references")
    assert "Goyal et al., 2017" in references.get_text()
    assert "Li et al., 2014" in references.get_text()
    (entry,) = (
        found
        for found in references.find_all(class_="citation")
        if found.get_text().lstrip(" \n[").startswith("Goyal et al., 2017")
    )
    assert entry.find("a", href="one.html") and not entry.find("a", href="two.html")


def test_a_call_in_a_table_breaks_after_its_dots_and_is_copied_without_them(small_book):
    call = page(small_book, "one").select("td code")[3]
    assert [mark.previous_sibling.get_text() for mark in call.find_all("wbr")] == [
        "tool."
    ]
    assert call.get_text() == "tool.value_3"


@pytest.mark.parametrize("tool", sorted(p.stem for p in (ROOT / "tools").glob("*.py")))
def test_a_tool_finds_what_it_imports(tool):
    importlib.import_module(tool)  # most run only when somebody asks for them
