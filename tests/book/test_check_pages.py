"""tools/check_pages.py passes a good book and finds each fault of a bad page."""

import base64

import pytest
from book.notebooks import png

pytestmark = pytest.mark.browser

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Page</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  body {{ margin: 0; color: #000; background: #fff; }}
  .sd-tab-content {{ display: none; }}
  input:checked + label + .sd-tab-content {{ display: block; }}
  pre {{ overflow-x: auto; }}
</style>{head}</head>
<body><article><h1 id="top">A title</h1>{body}</article></body></html>
"""

GOOD = """
<p>Good, <a href="other.html#top">linked</a> and <img src="red.png" alt="red">.</p>
<pre tabindex="0">{long}</pre>
""".format(long="a long line of code " * 40)

# The stored choice of sphinx-design, in two lines.
SYNC = """<script>
addEventListener("DOMContentLoaded", () => {
  const stored = localStorage.getItem("tab");
  for (const label of document.querySelectorAll("label")) {
    const input = document.getElementById(label.htmlFor);
    if (label.dataset.syncId === stored) input.checked = true;
    input.addEventListener("change", () => {
      localStorage.setItem("tab", label.dataset.syncId);
      for (const same of document.querySelectorAll(
          `label[data-sync-id=${label.dataset.syncId}]`))
        document.getElementById(same.htmlFor).checked = true;
    });
  }
});
</script>"""


def tabs(name):
    parts = "".join(
        f'<input type="radio" id="{name}-{key}" name="{name}" {checked}>'
        f'<label class="sd-tab-label" for="{name}-{key}" data-sync-id="{key}" '
        f'data-sync-group="framework">{key}</label>'
        f'<div class="sd-tab-content">{key} code</div>'
        for key, checked in (("torch", "checked"), ("mxnet", ""), ("paddle", ""))
    )
    return f'<div class="sd-tab-set">{parts}</div>'


# A fault: what makes it (head, body) and what must be said about it.
FAULTS = {
    "script": ("<script>undefined_name()</script>", "", "script error: undefined_name"),
    "foreign": (
        '<script src="https://cdn.example.org/x.js"></script>',
        "",
        "request to another host: https://cdn.example.org/x.js",
    ),
    "missing": ('<link rel="stylesheet" href="no.css">', "", "no.css (404)"),
    "alt": ("", '<img src="red.png" alt=" ">', "image without alt text: red.png"),
    "no-image": ("", '<img src="none.png" alt="x">', "does not load: none.png"),
    "wide": ("", '<div style="width:400px">wide</div>', "at 360 px: the page is 4"),
    "pale": ("", '<p style="color:#bbb">pale</p>', "light: contrast 1.9"),
    "access": ("", "<button></button>", "axe: button-name, 1 times"),
    "math": ("", '<div class="math">x^2</div>', "formulas, but no MathJax"),
    "link": ("", '<a href="nowhere.html">x</a>', "link to no page: nowhere.html"),
    "anchor": ("", '<a href="other.html#no">x</a>', "no place: other.html#no"),
    "tabs": (SYNC.replace("localStorage.setItem", "(() => {})"), "", "after a reload"),
}


def check(folder, chapters=False, **pages):
    import check_pages

    folder.mkdir(exist_ok=True)
    (folder / "red.png").write_bytes(base64.b64decode(png(size=(20, 10))))
    for name, (head, body) in pages.items():
        (folder / f"{name}.html").write_text(PAGE.format(head=head, body=body))
    return check_pages.check(folder, chapters)


def test_each_fault_is_found_on_its_page_and_none_on_a_good_one(tmp_path):
    pages = {f"bad-{name}": fault[:2] for name, fault in FAULTS.items()}
    pages["bad-tabs"] = (FAULTS["tabs"][0], tabs("a") + tabs("b"))
    pages |= {"good": (SYNC, GOOD + tabs("c") + tabs("d")), "other": ("", "<p>No.</p>")}
    found = check(tmp_path, **pages)
    assert {*found} == {f"bad-{name}.html" for name in FAULTS}
    for name, (_, _, complaint) in FAULTS.items():
        problems = found[f"bad-{name}.html"]
        assert any(complaint in problem for problem in problems), (name, problems)


def test_a_real_small_book_is_well(small_book):
    import check_pages

    assert check_pages.check(small_book, chapters=False) == {}


def test_measures_of_a_chapter_and_its_place_in_the_search(tmp_path, monkeypatch):
    import check_pages

    code = '<div class="cell"><pre style="height: 2000px">x</pre></div>'
    figure = '<img src="red.png" alt="red" style="width: 200px; height: 100px">'
    words = '<p style="height: 3000px">words</p>'
    found = (
        '<div id="search-results"><p class="search-summary">One page.</p><ul class='
        '"search"><li><a href="chapters/wrong.html">A</a></li></ul></div>'
    )
    monkeypatch.setattr(check_pages, "SEARCHES", {"FSDP": "sharding", "x": "wrong"})
    problems = check(
        tmp_path / "chapters",
        chapters=True,
        good=("", figure + code + words),
        late=("", words + code + figure),
        code=("", figure + code + code),
        search=("", found),
    )
    assert set(problems) == {"late.html", "code.html", "search.html"}
    assert "first figure is not within" in problems["late.html"][0]
    assert "code and output, at most 45%" in problems["code.html"][0]
    missed = problems["search.html"]
    assert "search for 'FSDP' finds chapters/wrong.html, not sharding" in missed
    assert not any("'x'" in text for text in missed)
