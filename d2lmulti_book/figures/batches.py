"""Figures of the critical batch size: schematic, measured. Chapter: *large_batch*."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .style import INK, device_color, styled, subplots


@styled
def steps_to_goal() -> Figure:
    """Draw steps and examples to a goal against the batch: a schematic, not data."""
    figure, axes = subplots(1, 2, 8, 3.4, sharey=True)
    batch = np.logspace(-2, 2, 200)  # in units of the noise scale
    titles = "Optimizer steps (time)", "Examples processed (compute)"
    curves = 1 + 1 / batch, 1 + batch
    limits = (1 / batch, np.ones_like(batch)), (np.ones_like(batch), batch)
    for i, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        for limit in limits[i]:
            ax.plot(batch, limit, color="#888888", ls=(0, (4, 3)), lw=1)
        ax.plot(batch, curves[i], color=device_color(i), lw=2.8)
        ax.plot(1, 2, "o", ms=9, color=INK)
        ax.set(xscale="log", yscale="log", xlim=(0.01, 100), ylim=(0.6, 150))
        ax.set(
            title=title, xlabel="batch / noise scale", xticks=(0.01, 0.1, 1, 10, 100)
        )
        last = "" if i == 0 else "100"  # it would touch the next panel's first
        ax.set_xticklabels(("1/100", "1/10", "1", "10", last))
        ax.set(yticks=(1, 10, 100), yticklabels=("minimum", "10 ×", "100 ×"))
        ax.minorticks_off()
    words = {"color": INK, "size": 10, "ha": "center", "va": "center"}
    axes[0].text(0.25, 35, "twice the batch,\nhalf the steps", **words)
    axes[0].text(18, 6, "twice the batch,\nnearly the\nsame steps", **words)
    axes[1].text(0.06, 6, "twice the batch,\nnearly the\nsame compute", **words)
    axes[1].text(2, 35, "twice the batch,\ntwice the compute", **words)
    return figure


@styled
def error_by_batch(
    batches: Sequence[int], errors: Mapping[str, np.ndarray], banded: Sequence[str]
) -> Figure:
    """Draw the mean test error of every rule, and the range of the seeds of some."""
    figure, (ax,) = subplots(1, 1, 8, 3.8)
    for i, (rule, runs) in zip((5, 1, 2, 3, 0), errors.items(), strict=False):
        mean, color = runs.mean(1), device_color(i)
        ax.plot(batches, mean, color=color, marker="o", ms=4, lw=2)
        if rule in banded:
            band = {"color": color, "alpha": 0.15, "lw": 0}
            ax.fill_between(batches, runs.min(1), runs.max(1), **band)
        ax.text(batches[-1] * 1.2, mean[-1], rule, color=INK, size=10, va="center")
    ax.set(xscale="log", yscale="log", xlabel="batch", ylabel="test error, %")
    ax.set(xticks=batches, xticklabels=batches, xlim=(7, 1150))
    ax.set(yticks=(2, 5, 10, 20, 50), yticklabels=(2, 5, 10, 20, 50))
    ax.minorticks_off()
    ax.grid(alpha=0.3)
    return figure
