"""Figures of predicted times, from formulas and not from measurements.

Chapter: *cost_model*.
"""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from d2lmulti_cluster.cost import formula_seconds
from d2lmulti_cluster.hardware import Cluster, uniform
from d2lmulti_cluster.nccl import nccl_seconds
from d2lmulti_cluster.presets import get_cluster

from .style import INK, device_color, styled, subplots

_BYTES = 100e6
_MEASURED = 512  # GPUs of the largest all-reduce in chapters/measured


def ring_without_waiting(n: int, nbytes: float, cluster: Cluster) -> float:
    """Return the seconds of a flat ring whose sends do not wait for delivery.

    All nodes are alike, so the ranks of one node stand for all.
    """
    k, chunk = min(n, cluster.per_node), nbytes / n
    links = [cluster.inside] * k
    if n > k:
        links[-1] = cluster.between
    arrived, port_free = [0.0] * k, [0.0] * k
    for _ in range(2 * (n - 1)):
        out = []
        for rank, link in enumerate(links):
            begin = max(arrived[rank], port_free[rank])
            port_free[rank] = begin + chunk / link.bandwidth
            out.append(port_free[rank] + link.latency)
        arrived = [out[-1], *out[:-1]]
    return max(arrived)


def halving_between_nodes(n: int, nbytes: float, cluster: Cluster) -> float:
    """Return the seconds of rings in each node and halving-doubling between nodes."""
    k = cluster.per_node
    network = uniform(cluster.between.latency, cluster.between.bandwidth)
    inside = 2 * (k - 1) * cluster.inside.seconds(nbytes / k)
    between = formula_seconds("halving_doubling", n // k, nbytes / k, network)
    return inside + between


@styled
def allreduce_by_size() -> Figure:
    """Draw the predicted time of an all-reduce of 100 MB against the number of GPUs.

    Each curve is a formula, on DGX H100 nodes of eight GPUs. The flat ring is a band,
    between sends that wait for delivery and sends that do not. Sizes without a
    measurement are shaded.
    """
    cluster = get_cluster("dgx-h100")
    sizes = [2**k for k in range(3, 15)]

    def times(seconds: Callable[[int], float]) -> list[float]:
        return [1e3 * seconds(n) for n in sizes]

    waiting = times(lambda n: formula_seconds("ring", n, _BYTES, cluster))
    free = times(lambda n: ring_without_waiting(n, _BYTES, cluster))
    lines = {
        "two-level rings": times(
            lambda n: formula_seconds("hierarchical", n, _BYTES, cluster)
        ),
        "halving-doubling": times(lambda n: halving_between_nodes(n, _BYTES, cluster)),
        "NCCL's tree": times(
            lambda n: nccl_seconds("allreduce", _BYTES, n, cluster, algorithm="tree")
        ),
    }
    figure, (ax,) = subplots(1, 1, 4.1, 3.9)
    look = {"color": device_color(0), "lw": 2, "marker": "o", "ms": 4}
    label = f"flat ring, {free[-1]:.0f} to {waiting[-1]:.0f} ms at 16,384"
    ax.plot(sizes, waiting, label=label, **look)
    ax.plot(sizes, free, **look)
    ax.fill_between(sizes, free, waiting, color=device_color(0), alpha=0.25, lw=0)
    for i, (name, curve) in enumerate(lines.items(), start=1):
        line = {"color": device_color(i), "ls": ("--", "-.", ":")[i - 1], "lw": 2}
        digits = 0 if curve[-1] > 10 else 1
        label = f"{name}, {curve[-1]:.{digits}f} ms"
        ax.plot(sizes, curve, marker="o", ms=4, label=label, **line)
    ax.set(xscale="log", yscale="log", xlim=(6, 16384 * 1.5), ylim=(0.12, 30000))
    ticks = [8, 64, 512, 4096, 16384]
    ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    ax.minorticks_off()
    ax.axvspan(_MEASURED, sizes[-1], color="#EEEEEE", zorder=0)
    ax.text(_MEASURED * 1.2, 0.19, "none measured", color=INK, size=9.5)
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
