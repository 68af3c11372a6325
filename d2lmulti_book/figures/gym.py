"""Accuracies and weights of faulty programs. Chapter: *gym*."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from d2lmulti_book.gym.faults import FAULTS
from d2lmulti_book.gym.grading import SAME

from .style import INK, device_color, styled, subplots


@styled
def hidden_faults(measured: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Draw each program's accuracies over seeds, and the error of its weights.

    `measured` has, by the name of a fault, the accuracies of the correct and of the
    faulty program, how far the faulty weights are off, and how far each of the two
    is from its own run with one worker.
    """
    figure, (left, right) = subplots(1, 2, 7.6, 5.6, sharey=True)
    rows = [fault for fault in FAULTS if fault.name in measured]
    ring = {"ls": "none", "mfc": "none", "mec": INK}
    words = {"color": INK, "size": 9.5, "va": "center"}
    for y, fault in enumerate(rows):
        row = measured[fault.name]
        for i, (kind, shift) in enumerate((("correct", -0.19), ("faulty", 0.19))):
            look = {"color": device_color(5 * i), "solid_capstyle": "butt"}
            ends = [min(row[kind]), max(row[kind])]
            label = f"{kind} program" if y == 0 else None
            left.plot(ends, [y + shift] * 2, lw=5, label=label, **look)
            left.plot(sum(row[kind]) / len(row[kind]), y + shift, "|k", ms=7, mew=2)
        correct_alone, faulty_alone = row["one_worker"]
        if correct_alone < SAME:  # otherwise the batch depends on the workers
            right.plot(faulty_alone, y, "o", ms=9, **ring)
        if row["off"][0]:
            right.plot(row["off"][0], y, "D", ms=5, color=device_color(5))
        else:
            note = "weights right, accuracy wrong"
            white = {"fc": "white", "ec": "none", "pad": 1}
            right.text(10, y, note, ha="right", bbox=white, **words)
    diamond = {"ls": "none", "marker": "D", "ms": 5, "color": device_color(5)}
    right.plot([], [], label="from the correct program", **diamond)
    right.plot([], [], "o", ms=9, label="from one worker's weights", **ring)
    left.plot([], [], "|k", ms=7, mew=2, label="mean")
    right.axvspan(1e-16, SAME, color="#EEEEEE", zorder=0)
    right.text(2e-16, -0.35, "counts as equal", **words)
    left.set_yticks(range(len(rows)), [str(fault.number) for fault in rows])
    left.set(xlabel="test accuracy, five seeds", ylabel="program")
    label = "faulty weights off by (relative)"
    right.set(xscale="log", xlim=(1e-16, 20), xlabel=label)
    left.invert_yaxis()
    for ax in (left, right):  # below the axes, where no data can be
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13))
    return figure
