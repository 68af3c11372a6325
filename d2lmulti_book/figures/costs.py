"""Figures of predicted times, from formulas and not from measurements.

Chapter: *cost_model*.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from d2lmulti_cluster.cost import formula_seconds
from d2lmulti_cluster.nccl import nccl_seconds
from d2lmulti_cluster.presets import get_cluster

from .style import INK, device_color, styled, subplots

_BYTES = 100e6
_MEASURED = 64  # GPUs of the largest all-reduce in chapters/measured


@styled
def allreduce_by_size() -> Figure:
    """Draw the predicted time of an all-reduce of 100 MB against the number of GPUs.

    Each curve is a formula, on DGX H100 nodes of eight GPUs. Sizes without a
    measurement are shaded.
    """
    cluster = get_cluster("dgx-h100")
    sizes = [2**k for k in range(3, 15)]
    rings = {
        name: [1e3 * formula_seconds(kind, n, _BYTES, cluster) for n in sizes]
        for name, kind in (("flat ring", "ring"), ("two-level rings", "hierarchical"))
    }
    tree = [
        1e3 * nccl_seconds("allreduce", _BYTES, n, cluster, algorithm="tree")
        for n in sizes
    ]
    figure, (ax,) = subplots(1, 1, 4.1, 3.6)
    lines = {**rings, "NCCL's tree": tree}
    for i, (name, times) in enumerate(lines.items()):
        line = {"color": device_color(i), "ls": ("-", "--", "-.")[i], "lw": 2}
        digits = 0 if times[-1] > 1 else 1
        label = f"{name}, {times[-1]:.{digits}f} ms at 16,384"
        ax.plot(sizes, times, marker="o", ms=4, label=label, **line)
    ax.set(xscale="log", yscale="log", xlim=(6, 16384 * 1.5), ylim=(0.12, 9000))
    ax.set_xticks([8, 64, 512, 16384], ["8", "64", "512", "16,384"])
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    ax.minorticks_off()
    ax.axvspan(_MEASURED, sizes[-1], color="#EEEEEE", zorder=0)
    ax.text(_MEASURED * 1.2, 0.19, "no measurement beyond 64", color=INK, size=9.5)
    ax.legend(loc="upper left", fontsize=9.5)
    ax.set(xlabel="GPUs, eight per node", ylabel="ms for 100 MB (formula)")
    return figure


@styled
def break_even() -> Figure:
    """Draw the seconds of a step against the batch, for one worker and for two.

    One takes c + a b for a batch of b, two take c + a b / 2 + delta. The numbers are
    chosen for the drawing; only the crossing at b = 2 delta / a matters.
    """
    start, slope, delta, largest = 1.0, 1.0, 2.0, 8.0
    even = 2 * delta / slope
    figure, (ax,) = subplots(1, 1, 4.1, 3.4)
    one = (start, start + slope * largest)
    two = (start + delta, start + delta + slope * largest / 2)
    look = {"color": device_color(0), "lw": 2.5}
    ax.plot((0, largest), one, label="one worker\n$c + ab$", **look)
    look = {"color": device_color(5), "lw": 2.5, "ls": "--"}
    ax.plot((0, largest), two, label="two workers\n$c + ab/2 + \\delta$", **look)
    label = {"size": 10, "color": INK, "va": "center"}
    arrow = {"arrowstyle": "<->", "color": INK, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (0.12, start), (0.12, start + delta), arrowprops=arrow)
    ax.text(0.22, start + 1.3, "$\\delta$", **label)
    ax.plot((even, even), (0, start + slope * even), color=INK, lw=1, ls=":")
    ax.plot(even, start + slope * even, "o", color=INK, ms=7)
    ax.text(even / 2, 9.7, "two are slower", ha="center", **label)
    ax.text((even + largest) / 2, 9.7, "two are faster", ha="center", **label)
    ax.axvspan(0, even, color="#EEEEEE", zorder=0)
    ax.set(xlim=(0, largest), ylim=(0, 10.4))
    ax.legend(loc="lower right", fontsize=10)
    ax.set_xticks([0, even], ["0", "break-even batch\n$b^* = 2\\delta/a$"])
    ax.set_yticks([])
    ax.set(xlabel="examples in the whole batch, $b$", ylabel="time of a step")
    return figure
