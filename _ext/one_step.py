"""The directive `one-step`: a figure that plays a training step message by message.

Its content is the caption. `:first:` names the run that it shows at first and, unless
it is the beginning, the frame: `ring 4 19`. The page holds this run as a picture and a
table of messages, for whoever runs no script. All runs are written beside the script,
in one_step of the built book, and loaded when they are chosen. recorded_steps.py makes
them while the book is built.
"""

from __future__ import annotations

import html
from collections.abc import Collection
from pathlib import Path
from typing import Any

import recorded_steps
import step_clock
import step_strategies
from docutils.parsers.rst import directives
from interactive import Interactive, dumped, heads_of, row_of, tag
from sphinx.application import Sphinx

import d2lmulti

KINDS = {"F": "forward", "R": "forward again", "B": "backward", "U": "update"}
COUNTERS = {
    "sent": "sent",
    "weights": "weights, gradients",
    "activations": "activa&shy;tions",
    "idle": "idle",
}
WIDTH, LEFT, RIGHT, TOP = 600, 72, 10, 6
ROWS = {2: 62, 4: 46, 8: 34}  # height of a device's row, by the number of devices


def picture(run: dict[str, Any], label: str) -> str:
    """Draw a whole step: boxes of computation, and a line for each message."""
    k, row = run["devices"], ROWS[run["devices"]]
    height = TOP + row * k + 22

    def x(t: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * t / run["end"], 1)

    def y(d: int) -> float:
        return TOP + row * (d + 0.5)

    parts = [
        tag("text", f"device {d}", x=LEFT - 8, y=y(d) + 4, class_=f"name d{d}")
        for d in range(k)
    ]
    tall = row * 0.56
    for d, start, end, kind, number in run["blocks"]:
        width = max(1, x(end) - x(start) - 1)
        box = {"x": x(start), "y": y(d) - tall / 2, "width": round(width, 1)}
        parts.append(tag("rect", **box, height=tall, class_=f"block {kind} d{d}"))
        if width > 5 + 6 * len(str(number)) and kind != "U":
            at = {"x": round(x(start) + width / 2, 1), "y": y(d) + 4}
            parts.append(tag("text", str(number), **at, class_=f"inside {kind} d{d}"))
    for s in range(k):
        path = "".join(
            f"M{x(m[2])} {y(s)}L{x(m[3])} {y(m[1])}"
            for m in run["messages"]
            if m[0] == s
        )
        parts.append(tag("path", d=path, class_=f"sent d{s}"))
    size = {"viewBox": f"0 0 {WIDTH} {height}", "width": WIDTH, "height": height}
    return tag("svg", "".join(parts), role="img", **size, **{"aria-label": label})


def messages(run: dict[str, Any]) -> str:
    """Write the table of all messages."""
    rows = []
    for number, (s, t, _, _, size, what, turn, line) in enumerate(run["messages"], 1):
        words = run["what"][what] + (f", round {turn}" if turn else "")
        cells = [number, s, t, f"{size:,}", words, run["lines"][line]]
        rows.append(row_of(cells))
    return "".join(rows)


def page(first: str, frame: int, up: str, chapters: Collection[str]) -> str:
    """Write what stands in the page; `up` leads from it to the book's first folder.

    `chapters` are the pages that there are to link to.
    """
    runs = recorded_steps.all_runs()
    run, strategy = runs[first], recorded_steps.STRATEGIES[first.split()[0]]
    label = f"{strategy.title} on {run['devices']} devices: computations and messages"
    strategies = {
        key: {
            "title": one.title,
            "chapter": f"{up}{one.chapter}.html" if one.chapter in chapters else "",
            "devices": one.devices,
        }
        for key, one in recorded_steps.STRATEGIES.items()
    }
    held = [m for r in runs.values() for device in r["memory"] for m in device]
    head = {
        "strategies": strategies,
        "rows": ROWS,
        "runs": f"{up}one_step/",
        "first": first,
        "frame": frame,
        # The scale of the bars is that of all runs, so that strategies compare.
        "top": {
            "sent": max(max(r["sent"]) for r in runs.values()),
            "weights": max(m[1] for m in held),
            "activations": max(m[2] for m in held),
            "idle": 1,
        },
    }
    shown = {kind for _, _, _, kind, _ in run["blocks"]}
    kinds = "".join(
        f'<li class="{kind}" data-kind="{kind}"{"" if kind in shown else " hidden"}>'
        f"<i></i>{name}</li>"
        for kind, name in KINDS.items()
    )
    columns = heads_of(["device", *COUNTERS.values()])
    heads = heads_of(["number", "from", "to", "bytes", "what", "sent by"])
    return f"""\
<link rel="stylesheet" href="{up}one_step/one_step.css">
<div class="one-step" tabindex="0" role="group" \
aria-label="One step, message by message. Space plays, arrow keys step.">
<div class="controls" data-part="controls" hidden>
<select data-part="strategy" aria-label="Parallelism strategy"></select>
<select data-part="devices" aria-label="Number of devices"></select>
<button type="button" data-part="play">Play</button>
<span class="moment">
<button type="button" data-part="back" aria-label="Step back">◀</button>
<button type="button" data-part="next" aria-label="Step forward">▶</button>
<input type="range" data-part="slider" min="0" max="1" value="0" step="1" \
aria-label="Moment of the step">
</span>
</div>
<p class="now" data-part="now" aria-live="polite">{html.escape(strategy.title)} on \
{run["devices"]} devices. A script plays this step; here it is as a whole.</p>
<div class="picture" data-part="picture">{picture(run, html.escape(label))}</div>
<ul class="legend">{kinds}
<li class="M"><i></i>message, in the color of its sender</li>
<li>numbers in boxes: <span data-part="each">{run["each"]}</span></li></ul>
<table class="counters" data-part="counters" hidden>
<caption hidden>What each device has sent and stores at this moment</caption>
<thead><tr>{columns}</tr></thead><tbody></tbody>
</table>
<p class="result" data-part="result">After the step, all weights on all devices are \
those of one device; the largest difference is {run["difference"]:.0e}.</p>
<details data-part="details"><summary>All messages of this step as a table</summary>
<div class="messages" tabindex="0" role="region" aria-label="Messages">
<table><thead><tr>{heads}</tr></thead>
<tbody data-part="messages">{messages(run)}</tbody></table></div></details>
<p data-part="more" hidden><a data-part="chapter" href="#">The chapter</a>
<button type="button" data-part="link">Copy a link to this moment</button></p>
<script type="application/json" data-part="head">{dumped(head)}</script>
<script src="{up}one_step/one_step.js" defer></script>
</div>
"""


class OneStep(Interactive):
    """A figure that plays a step."""

    option_spec = {**Interactive.option_spec, "first": directives.unchanged}
    made_from = (recorded_steps, step_clock, step_strategies, d2lmulti)

    def page(self, up: str) -> str:
        strategy, devices, *frame = self.options.get("first", "ring 4").split()
        number = int(frame[0]) if frame else 0
        return page(f"{strategy} {devices}", number, up, self.env.found_docs)


def write_runs(app: Sphinx, error: Exception | None) -> None:
    """Write every run as a script, which also a page that is opened as a file loads."""
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "one_step"
    folder.mkdir(exist_ok=True)
    for name, run in recorded_steps.all_runs().items():
        text = f"oneStep.loaded({dumped(name)},{dumped(run)});\n"
        (folder / f"{name.replace(' ', '-')}.js").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, object]:
    """Register the directive."""
    app.add_directive("one-step", OneStep)
    app.connect("build-finished", write_runs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
