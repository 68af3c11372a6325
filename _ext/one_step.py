"""The directive `one-step`: a figure that plays a training step message by message.

Its content is the caption. `:first:` names the run that it shows at first and, unless
it is the beginning, the frame: `ring 4 19`. The page holds this run as a picture and a
table of messages, for whoever runs no script. All runs are written beside the script,
in one_step of the built book, and loaded when they are chosen. recorded_steps.py makes
them while the book is built.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import recorded_steps
import step_clock
import step_strategies
from docutils.parsers.rst import directives
from interactive import COMPACT, Interactive, rendered
from markupsafe import Markup, escape
from sphinx.application import Sphinx

import d2lmulti

KINDS = {"F": "forward", "R": "forward again", "B": "backward", "U": "update"}
WIDTH, LEFT, RIGHT, TOP = 600, 72, 10, 6
ROWS = {2: 62, 4: 46, 8: 34}  # height of a device's row, by the number of devices


def tag(name: str, text: str = "", **attributes: object) -> str:
    """Write an element."""
    words = "".join(f' {k.rstrip("_")}="{escape(v)}"' for k, v in attributes.items())
    return f"<{name}{words}>{text}</{name}>"


def picture(run: dict[str, Any], label: str, row_of: str = "device") -> Markup:
    """Draw a whole step: boxes of computation, and a line for each message."""
    k, row = run["devices"], ROWS[run["devices"]]
    height = TOP + row * k + 22

    def x(t: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * t / run["end"], 1)

    def y(d: int) -> float:
        return TOP + row * (d + 0.5)

    parts = [
        tag("text", f"{row_of} {d}", x=LEFT - 8, y=y(d) + 4, class_=f"name d{d}")
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
    size |= {"role": "img", "aria-label": label}
    return Markup(tag("svg", "".join(parts), **size))


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
    return rendered(
        "one_step.html",
        up=up,
        run=run,
        title=strategy.title,
        picture=picture(run, label),
        kinds=KINDS,
        shown={kind for _, _, _, kind, _ in run["blocks"]},
        head=head,
    )


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
        text = f"oneStep.loaded({json.dumps(name)},{json.dumps(run, **COMPACT)});\n"
        (folder / f"{name.replace(' ', '-')}.js").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, object]:
    """Register the directive."""
    app.add_directive("one-step", OneStep)
    app.connect("build-finished", write_runs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
