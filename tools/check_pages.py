"""Visit every page of the built book in Chromium and list what is wrong with it.

    python tools/check_pages.py [FOLDER]    # default: _build/html

Each page, wide and narrow, light and dark: no console errors, no failed or foreign
request, no overflow, alt text, formulas, links, nothing serious that axe finds (it
knows contrast, too), not too much code, a figure early. Over the book: the search shows
the right chapter first. Exits 1 if anything is wrong.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, unquote, urldefrag, urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Response, TimeoutError, sync_playwright

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
WIDE, NARROW, HEIGHT = 1280, 360, 900
WINDOWS = 3  # browsers at once: axe computes for seconds on a long page
# Of a chapter, in a window of 1200 px: share of its height, and pixels to its figure.
MEASURED, MAX_CODE, MAX_ABOVE_FIGURE = 1200, 0.45, 2 * HEIGHT
MAX_BYTES = 2_000_000  # that a page loads, unpacked, without pictures
# What a reader searches for, and the chapter that explains it.
SEARCHES = {
    "tensor parallelism": "tensor_parallel",
    "pipeline parallelism": "pipeline_parallel",
    "1F1B": "pipeline_parallel",
    "context parallelism": "long_sequences",
    "ring attention": "long_sequences",
    "FSDP": "sharding",
    "ZeRO": "sharding",
    "gradient checkpointing": "sharding",
    "ring all-reduce": "allreduce",
    "warm-up": "large_batch",
    "mixture of experts": "experts",
    "torchrun": "many_machines",
    "mean of means": "data_parallel",
    "DDP": "built_in",
    "parameter server": "parameter_server",
    "Horovod": "horovod",
}
FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    # Nothing but this machine has an address, whatever a page or the browser asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]

Problems = dict[str, list[str]]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine; yield its address."""
    kind = http.server.SimpleHTTPRequestHandler
    quiet = type("Quiet", (kind,), {"log_message": lambda *words: None})
    handler = functools.partial(quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def chromium() -> str:
    """Find the Chromium of this machine, or stop with advice."""
    names = ("chromium", "chromium-browser", "google-chrome")
    for path in (os.environ.get("CHROMIUM"), *map(shutil.which, names)):
        if path:
            return path
    sys.exit(f"found none of {', '.join(names)}; install one, or set CHROMIUM to it")


def pages_of(folder: Path) -> list[str]:
    """List the pages that the last build made; older ones may lie beside them."""
    text = (folder / "searchindex.js").read_text(encoding="utf-8")
    names = json.loads(text[text.index("{") : text.rindex("}") + 1])["docnames"]
    more = [p for p in ("index.html", "search.html") if (folder / p).exists()]
    return sorted({*(f"{name}.html" for name in names), *more})


class Visit:
    """One browser window that notes what goes wrong on the page it is on."""

    def __init__(self, browser: Browser, root: str) -> None:
        self.root, self.wrong = root, []
        self.loaded: dict[str, int] = {}  # bytes by address, without pictures
        context = browser.new_context(viewport={"width": WIDE, "height": HEIGHT})
        context.add_init_script(SCRIPT)
        context.route(lambda url: not url.startswith(root), self._foreign)
        self.page: Page = context.new_page()
        # A missing file is reported, with its address, as a response.
        self.page.on(
            "console",
            lambda m: self._note(
                m.type == "error" and "Failed to load" not in m.text,
                f"console: {m.text}",
            ),
        )
        self.page.on("pageerror", lambda e: self._note(True, f"script error: {e}"))
        self.page.on("response", self._response)

    def _note(self, is_wrong: bool, text: str) -> None:
        self.wrong += [text] * is_wrong

    def _response(self, response: Response) -> None:
        address = f"{response.url} ({response.status})"
        self._note(response.status >= 400, f"request failed: {address}")
        if response.request.resource_type != "image":
            length = response.headers.get("content-length", "0")
            self.loaded[response.url] = int(length)

    def _foreign(self, route) -> None:
        if route.request.url.startswith(("data:", "blob:", "about:")):
            return route.continue_()
        self.wrong.append(f"request to another host: {route.request.url}")
        return route.abort()

    def go(self, path: str) -> None:
        """Open a page and wait until it is quiet."""
        self.page.goto(f"{self.root}/{path}", wait_until="networkidle")
        # Formulas move what stands below them: a click would miss it.
        self.page.evaluate("window.MathJax?.startup?.promise?.then(() => null)")

    def ask(self, function: str, *arguments: object) -> list:
        """Call a function of check_pages.js in the page."""
        return self.page.evaluate(
            "([name, args]) => checkPages[name](...args)", [function, list(arguments)]
        )

    def show(self, mode: str, width: int) -> None:
        """Set the width of the window and the reader's preference."""
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        self.page.emulate_media(color_scheme=mode)
        themed = "mode => (document.documentElement.dataset.theme ?? mode) === mode"
        try:
            self.page.wait_for_function(themed, arg=mode, timeout=10_000)
        except TimeoutError:
            self.wrong.append(f"a reader who prefers {mode} pages gets another theme")


def check_page(visit: Visit, path: str) -> tuple[list[str], dict]:
    """Look at one page in every form; return its problems and its links."""
    visit.wrong, visit.loaded = [], {}
    visit.page.emulate_media(color_scheme="light")
    visit.page.set_viewport_size({"width": WIDE, "height": HEIGHT})
    visit.go(path)
    loaded = sum(visit.loaded.values())
    visit.show("light", WIDE)
    wrong: list[str] = [*visit.ask("math"), *visit.ask("images")]
    if loaded > MAX_BYTES:
        wrong.append(f"loads {loaded:,} bytes without pictures, at most {MAX_BYTES:,}")
    wrong += check_measures(visit)
    links = visit.ask("links")
    visit.ask("openAll")  # hidden solutions and inputs must be right too
    for mode, width in (("light", WIDE), ("dark", WIDE), ("dark", NARROW)):
        visit.show(mode, width)
        wrong += [f"at {width} px: {text}" for text in visit.ask("overflow")]
        if width == WIDE:
            only = {"runOnly": ["color-contrast"]} if mode == "dark" else {}
            wrong += [f"{mode}: {text}" for text in serious(visit.page, **only)]
    return [*visit.wrong, *wrong], links


def serious(page: Page, part: str | None = None, **options: object) -> list[str]:
    """Return what shuts out a reader from a page, or a part of it, by axe's measure."""
    options |= {"resultTypes": ["violations"], "preload": False}
    return [
        f"axe: {broken['id']}, {len(broken['nodes'])} times: "
        f"{broken['nodes'][0]['html'][:80]}"
        for broken in Axe().run(page, part, options).response["violations"]
        if broken["impact"] in ("serious", "critical")
    ]


def check_measures(visit: Visit) -> list[str]:
    """Say where a chapter has too much code, or shows its first figure too late."""
    visit.show("light", MEASURED)
    found = visit.ask("measures")
    if not found["cells"]:
        return []
    wrong = []
    if found["code"] > MAX_CODE:
        wrong.append(f"{found['code']:.0%} code and output, at most {MAX_CODE:.0%}")
    if found["figure"] is None or found["figure"] > MAX_ABOVE_FIGURE:
        wrong.append(f"the first figure is not within {MAX_ABOVE_FIGURE} px")
    return wrong


def check_links(folder: Path, links: dict[str, dict]) -> Problems:
    """Find links inside the book that lead to no file or to no place on a page."""
    wrong: Problems = {}
    for path, page in links.items():
        for href in sorted(set(page["hrefs"])):
            address, anchor = urldefrag(href)
            target = unquote(urlsplit(address).path).lstrip("/") or "index.html"
            ids = links.get(target, {}).get("ids")
            if not (folder / target).is_file():
                wrong.setdefault(path, []).append(f"link to no page: {target}")
            elif anchor and ids is not None and unquote(anchor) not in ids:
                place = f"{target}#{anchor}"
                wrong.setdefault(path, []).append(f"link to no place: {place}")
    return wrong


def check_search(visit: Visit, words: str, chapter: str) -> list[str]:
    """Search without a network; expect a chapter as the first result."""
    visit.wrong = []
    visit.go(f"search.html?q={quote(words)}")
    results = visit.page.locator("#search-results ul.search li a")
    # The summary is written when the last result is there.
    with contextlib.suppress(TimeoutError):
        visit.page.locator("#search-results p.search-summary").wait_for(timeout=5000)
        results.first.wait_for(timeout=5000)
    first = results.first.get_attribute("href") if results.count() else "nothing"
    if f"{chapter}.html" in first:
        return visit.wrong
    return [*visit.wrong, f"search for {words!r} finds {first}, not {chapter}"]


def check(folder: Path) -> Problems:
    """Check a built book; return the problems of each page that has any."""
    pages = pages_of(folder)
    problems: Problems = {}
    links: dict[str, dict] = {}
    with served(folder) as root, ThreadPoolExecutor(WINDOWS) as pool:
        parts = [pages[i::WINDOWS] for i in range(WINDOWS)]
        for found in pool.map(functools.partial(check_some, root), parts):
            for path, (wrong, page) in found.items():
                problems[path], links[path] = wrong, page
        problems["search.html"] += check_searches(root)
    for path, texts in check_links(folder, links).items():
        problems[path] += texts
    return {path: texts for path, texts in problems.items() if texts}


@contextlib.contextmanager
def visiting(root: str) -> Iterator[Visit]:
    """Open a browser for this thread."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield Visit(browser, root)
        browser.close()


def check_some(root: str, paths: list[str]) -> dict[str, tuple[list[str], dict]]:
    """Check pages one after another in a browser of their own."""
    with visiting(root) as visit:
        return {path: check_page(visit, path) for path in paths}


def check_searches(root: str) -> list[str]:
    """Search for everything that a reader searches for."""
    with visiting(root) as visit:
        return [
            text for words in SEARCHES.items() for text in check_search(visit, *words)
        ]


def main() -> int:
    """Check the folder that is named; return 1 if any page has a problem."""
    folder = Path(sys.argv[1] if sys.argv[1:] else "_build/html")
    if not (folder / "searchindex.js").exists():
        sys.exit(f"expected pages in {folder}, found none; run: make book")
    problems = check(folder)
    for path, texts in problems.items():
        print("\n  - ".join([path, *texts]))
    print(f"{len(pages_of(folder))} pages, {sum(map(len, problems.values()))} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
