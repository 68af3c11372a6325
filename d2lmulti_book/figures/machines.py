"""Figures of simulated devices, a device's queue, a node, and an input pipeline.

Chapters: *setup*, *devices*, *bottlenecks*.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from .style import INK, arrow, box, canvas, device_color, styled


@styled
def devices_and_ledger() -> Figure:
    """Draw two simulated devices, the messages between them, and the ledger."""
    figure, ax = canvas(4.1, 4.0, (-0.1, 8.1), (-0.1, 7.9))
    box(ax, (0, 2.9), (8.0, 4.9), color="#EEEEEE")
    ax.text(4, 3.15, "one CPU, one memory", ha="center", size=10, color=INK)
    for rank, x in enumerate((0.3, 5.5)):
        ink = "white" if rank == 0 else INK
        box(ax, (x, 3.8), (2.2, 3.7), "", device_color(rank))
        ax.text(x + 1.1, 7.0, f"sim:{rank}", ha="center", size=11, color=ink)
        words = "own storage:\n1,000 values\n× 8 bytes"
        box(ax, (x + 0.1, 4.2), (2.0, 2.4), words, "white")
    arrow(ax, (5.5, 6.0), (2.5, 6.0))
    arrow(ax, (2.5, 4.6), (5.5, 4.6))
    ax.text(4, 6.15, "1. values of\nsim:1", ha="center", size=10, color=INK)
    ax.text(4, 4.75, "2. sum", ha="center", size=10, color=INK)
    box(ax, (0, 0), (8.0, 2.5), "", "white", edge=INK)
    ax.text(0.4, 1.95, "ledger", size=11, color=INK)
    lines = ("1. sim:1 → sim:0", "2. sim:0 → sim:1", "2 messages")
    for y, words, size in zip((1.95, 1.25, 0.4), lines, (8, 8, 16), strict=True):
        ax.text(2.1, y, words, size=10, color=INK)
        ax.text(7.6, y, f"{size},000 bytes", ha="right", size=10, color=INK)
    ax.plot([2.1, 7.6], [1.0, 1.0], color=INK, lw=1)
    return figure


@styled
def host_queue() -> Figure:
    """Draw three calls of the host, their time in the queue, and a read."""
    figure, ax = canvas(8, 3.6, (-1.1, 10.7), (-0.5, 4.8))
    calls = {1: 0.0, 2: 0.7, 3: 1.4, 4: 8.0}
    runs = {1: (0.7, 3.0), 2: (3.0, 5.3), 3: (5.3, 7.6), 4: (8.7, 10.6)}
    for number, begin in calls.items():
        color = device_color((4, 1, 3, 5)[number - 1])
        box(ax, (begin, 3.2), (0.7, 0.8), f"launch\n{number}", color, size=8.5)
        start, end = runs[number]
        box(ax, (start, 0.4), (end - start, 0.8), f"operation {number}", color)
        if start > begin + 0.7:  # it waits until the one before has run
            y = 2.35 if number == 2 else 1.75
            box(ax, (begin + 0.7, y), (start - begin - 0.7, 0.45), str(number), color)
        else:
            arrow(ax, (start, 3.2), (start, 1.2))
    box(ax, (2.1, 3.2), (5.9, 0.8), "y.item() waits for operation 3")
    box(ax, (7.6, 0.4), (1.1, 0.8), "idle")
    arrow(ax, (7.6, 1.2), (8.0, 3.2))
    ax.text(7.6, 2.2, "the value", ha="right", va="center", size=10, color=INK)
    for x, words in ((2.1, "call 3 has returned"), (8.0, "result 3 is here")):
        ax.plot([x, x], [4.0, 4.25], color=INK, lw=1.2)
        ax.text(x, 4.32, words, ha="center", va="bottom", size=10, color=INK)
    for y, words in ((3.6, "host"), (2.3, "queue"), (0.8, "device")):
        ax.text(-0.2, y, words, ha="right", va="center", size=11, color=INK)
    arrow(ax, (0.0, 0.1), (10.6, 0.1))
    ax.text(10.6, -0.1, "time", ha="right", va="top", size=10, color=INK)
    return figure


@styled
def node_topology() -> Figure:
    """Draw the links of four GPUs in a node, with the bandwidths of an A100."""
    figure, ax = canvas(8, 4.4, (-0.7, 10.1), (-0.1, 5.7))
    look = {"color": INK, "lw": 1.3, "zorder": 0}
    box(ax, (0, 0), (10, 0.75), "NVSwitches: 12 NVLinks per GPU (NV12), 300 GB/s")
    for side in (0, 1):
        x = 5.4 * side
        box(ax, (x, 4.4), (4.6, 0.75), f"processor {side} and its memory", "#EEEEEE")
        box(ax, (x + 0.9, 3.0), (2.8, 0.7), "PCIe switch (PIX)", "#EEEEEE")
        box(ax, (x + 3.2, 1.45), (1.4, 0.8), "NIC", "white", edge=INK)
        ax.plot([x + 2.3, x + 2.3], [3.7, 4.4], **look)
        ax.plot([x + 3.9, x + 2.9], [2.25, 3.0], **look)
        for slot in (0, 1):
            gpu, left = 2 * side + slot, x + 1.55 * slot
            box(ax, (left, 1.45), (1.4, 0.8), f"GPU {gpu}", device_color(gpu))
            ax.plot([left + 0.7, x + 1.7 + 0.6 * slot], [2.25, 3.0], **look)
            ax.plot([left + 0.7, left + 0.7], [0.75, 1.45], **look)
    ax.plot([4.6, 5.4], [4.78, 4.78], **look)
    for x, y, words in ((5.0, 4.95, "SYS"), (-0.05, 2.65, "31.5 GB/s")):
        ax.text(x, y, words, ha="center", va="bottom", size=10, color=INK)
    return figure


@styled
def input_pipeline(workers: int = 2) -> Figure:
    """Draw workers, the queue of batches, and the device as three stages."""
    figure, ax = canvas(8, 3.6, (-0.1, 10.1), (0.2, 4.9))
    for w in range(workers):
        y = 2.7 - 1.2 * w
        box(ax, (0, y), (2.6, 0.9), f"worker {w}\nprepares a batch", device_color(1))
        arrow(ax, (2.6, y + 0.45), (3.7, 2.4 if w == 0 else 2.2))
    for slot in range(2 * workers):
        full = slot >= workers
        color = device_color(4) if full else "white"
        corner = (3.7 + 0.65 * slot, 1.85)
        box(ax, corner, (0.6, 0.9), "batch" if full else "", color, edge=INK)
    arrow(ax, (6.3, 2.3), (7.4, 2.3))
    words = "device\ntrains on a batch"
    box(ax, (7.4, 1.5), (2.6, 1.6), words, device_color(0))
    arrow(ax, (8.7, 3.1), (1.3, 3.6), connectionstyle="arc3,rad=0.16")
    ax.text(5, 4.45, "index of the next batch to prepare", ha="center", size=10)
    for x, name, cost in (
        (1.3, "1. load", r"a batch every $\ell / w$"),
        (5.0, "2. queue", r"hand over in $h$"),
        (8.7, "3. compute", r"a batch every $c + h$"),
    ):
        ax.text(x, 0.95, name, ha="center", size=11, color=INK)
        ax.text(x, 0.45, cost, ha="center", size=11, color=INK)
    return figure
