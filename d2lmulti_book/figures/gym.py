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
    faulty program, and the largest difference of weights.
    """
    figure, (left, right) = subplots(1, 2, 7.6, 4.6, sharey=True)
    rows = [fault for fault in FAULTS if fault.name in measured]
    for y, fault in enumerate(rows):
        row = measured[fault.name]
        for i, (kind, shift) in enumerate((("correct", -0.16), ("faulty", 0.16))):
            look = {"color": device_color(5 * i), "solid_capstyle": "butt"}
            ends = [min(row[kind]), max(row[kind])]
            label = f"{kind} program" if y == 0 else None
            left.plot(ends, [y + shift] * 2, lw=5, label=label, **look)
        if row["off"][0]:
            right.plot(row["off"][0], y, "D", ms=6, color=device_color(5))
        else:
            note = "weights right, accuracy wrong  "
            right.text(20, y, note, color=INK, size=9.5, va="center", ha="right")
    right.axvspan(1e-16, SAME, color="#EEEEEE", zorder=0)
    right.text(2e-16, -0.35, "graded right", color=INK, size=9.5, va="center")
    left.set_yticks(range(len(rows)), [str(fault.number) for fault in rows])
    left.set(xlabel="test accuracy, five seeds", ylabel="program")
    right.set(xscale="log", xlim=(1e-16, 20), xlabel="weights off by (relative)")
    left.invert_yaxis()
    left.legend(loc="lower left")
    return figure
