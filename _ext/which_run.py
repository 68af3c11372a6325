"""The directive `which-run`: the reader guesses which of two recorded runs is broken.

Its content is the caption. `:ways:` names the ways to train that it shows, all unless
given. The page holds the runs that tools/record_bugs.py has recorded, the first of them
as two charts, and a table of all, for whoever runs no script.
"""

from __future__ import annotations

import json
from typing import Any

from docutils.parsers.rst import directives
from interactive import ROOT, Interactive, rendered
from markupsafe import Markup
from sphinx.application import Sphinx

RECORD = ROOT / "chapters" / "measured" / "planted_runs.json"
NETWORKS = {
    "mlp": "perceptron on digits",
    "deep_mlp": "perceptron of eight layers on digits",
    "lenet_sync_bn": "LeNet with batch normalization on digits",
    "transformer": "small transformer on text",
    "mixture": "small mixture of experts on text",
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 210, 44, 8, 10, 34
LOWEST, HIGHEST = -175, 25  # of differences, as ten times their logarithm
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
POINTS, FINAL = 25, 5  # of a curve; its last 20 steps
CAP = 100  # no recorded loss is above it
TICKS, SEEN = (-150, -100, -50, 0), -100  # over 1e-10 it is no rounding
Run = dict[str, list[int]]


def record(ways: list[str] | None = None) -> dict[str, Any]:
    """Read the recorded runs, of these ways to train only."""
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    kept = [bug for bug in found["bugs"] if not ways or bug["way"] in ways]
    names = {bug["way"] for bug in kept}
    if ways and set(ways) - names:
        raise ValueError(f"expected ways of {RECORD.name}, got {ways}")
    used = {name: way for name, way in found["ways"].items() if name in names}
    return found | {"bugs": kept, "ways": used}


def final(run: Run) -> float:
    """Return the mean loss of the last 20 steps."""
    points = run["loss"][-FINAL:]
    return sum(points) / len(points) / 1e4


def written(run: Run) -> str:
    """Write the final loss; a recorded loss is at most `CAP`, so this may be less."""
    capped = any(point >= 1e4 * CAP for point in run["loss"][-FINAL:])
    return "≥ " * capped + f"{final(run):.3g}"


def accuracy(run: Run) -> float:
    """Return the accuracy after all steps; 0 of a run that did not get so far."""
    return run["accuracy"][-1] / 1e3 if len(run["loss"]) == POINTS else 0.0


def facts(found: dict[str, Any]) -> dict[str, int]:
    """Count how well losses and weights tell."""
    pairs = [(found["ways"][bug["way"]], bug) for bug in found["bugs"]]
    ranges = [found["spread"][way["network"]] for way, _ in pairs]
    return {
        "higher_loss": sum(final(bug) > final(way) for way, bug in pairs),
        "lower_accuracy": sum(accuracy(bug) < accuracy(way) for way, bug in pairs),
        "in_spread": sum(
            low <= 1e4 * final(bug) <= high
            for (_, bug), (low, high) in zip(pairs, ranges, strict=True)
        ),
        "near": sum(accuracy(bug) >= accuracy(way) - 0.02 for way, bug in pairs),
        "soon": sum(bug["difference"][0] > SEEN for _, bug in pairs),
        "correct_most": max(max(way["difference"]) for way, _ in pairs),
        "broken_least": min(bug["difference"][-1] for _, bug in pairs),
    }


def power(tenths: int) -> str:
    """Write a difference, of which ten times the logarithm is given, with one digit."""
    digit, _, exponent = f"{10 ** (tenths / 10):.0e}".partition("e")
    if -3 < int(exponent) < 3:
        return f"{float(f'{digit}e{exponent}'):g}"
    return f"{digit}·10{str(int(exponent)).translate(_RAISED)}".removeprefix("1·")


def chart(
    title: str, lines: list[list[int]], ticks: dict[int, str], span: tuple[int, int]
) -> Markup:
    """Draw the lines of run A and run B over the steps."""
    low, high = span
    parts = [f'<text class="title" x="{LEFT}" y="{HEIGHT - 4}">{title}</text>']

    def y(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    for value, text in ticks.items():
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>'
            f'<text class="tick" x="{LEFT - 4}" y="{y(value) + 4}">{text}</text>'
        )
    step = (WIDTH - LEFT - RIGHT) / POINTS
    for name, points in zip("ab", lines, strict=True):
        path = " ".join(
            f"{LEFT + step * (i + 1):.1f},{y(value)}" for i, value in enumerate(points)
        )
        parts.append(f'<polyline class="{name}" points="{path}"/>')
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"{''.join(parts)}</svg>"
    )


def row(bug: dict[str, Any], way: dict[str, Any]) -> list[str]:
    """Return the cells of a bug in the table."""
    return [
        bug["bug"],
        f"{way['words']}, {way['devices']} devices",
        written(way),
        written(bug),
        f"{100 * accuracy(way):.1f}",
        f"{100 * accuracy(bug):.1f}" if accuracy(bug) else "none",
        power(bug["difference"][0]),
        power(bug["difference"][-1]),
    ]


def page(ways: list[str] | None, up: str) -> str:
    """Write what stands in the page; `up` leads from it to the book's first folder."""
    found = record(ways)
    known = facts(found)
    for way in found["ways"].values():
        way["network"] = NETWORKS[way["network"]]
    data = {key: found[key] for key in ("steps", "each", "ways", "bugs")}
    data["higherLoss"] = known["higher_loss"]
    first = found["bugs"][0]
    correct = found["ways"][first["way"]]
    top = max(correct["loss"])
    losses = chart(
        f"loss over {found['steps']} steps",
        [correct["loss"], first["loss"]],
        {0: "0", top: f"{top / 1e4:.1f}"},
        (0, top),
    )
    weights = chart(
        "weights: difference from one device",
        [correct["difference"], first["difference"]],
        {tenths: power(tenths) for tenths in TICKS},
        (LOWEST, HIGHEST),
    )
    bugs = found["bugs"]
    return rendered(
        "which_run.html",
        up=up,
        data=data,
        facts=known,
        power=power,
        count=len(bugs),
        losses=losses,
        weights=weights,
        rows=[row(bug, found["ways"][bug["way"]]) for bug in bugs],
        ended=[len(b["loss"]) * found["each"] for b in bugs if not accuracy(b)],
        left_out=found["left_out"],
        cap=CAP,
    )


class WhichRun(Interactive):
    """A game: which of two runs is broken?"""

    option_spec = {**Interactive.option_spec, "ways": directives.unchanged}
    made_from = (RECORD,)

    def page(self, up: str) -> str:
        return page(self.options.get("ways", "").split() or None, up)


def setup(app: Sphinx) -> dict[str, object]:
    """Register the directive."""
    app.add_directive("which-run", WhichRun)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
