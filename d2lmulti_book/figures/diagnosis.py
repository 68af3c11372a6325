"""A decision tree to find the cause of a failure: from the symptom to a tool.

Chapter: *failures*.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from .style import INK, device_color, styled, subplots

_TREE = (
    (
        "nothing\nmoves",
        (
            ("before the first step", "count processes; nc -vz HOST PORT"),
            ("later, one rank is silent", "ps (state T?); monitored_barrier"),
            ("later, all are alive", "stacks: py-spy dump, SIGUSR1"),
            ("too late to ask", "flight recorder: torchfrtrace"),
        ),
    ),
    (
        "it stops,\nwith a\nmessage",
        (
            ("connection lost", "earliest error in the logs of all ranks"),
            ("SIGKILL, no message", "dmesg | grep -i oom"),
            ("shapes or calls differ", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
            ("parameters unused", "TORCH_DISTRIBUTED_DEBUG=INFO"),
            ("NCCL, without a reason", "NCCL_DEBUG=INFO"),
        ),
    ),
    (
        "it runs, and\nis wrong",
        (
            ("replicas differ", "compare digests of the weights"),
            ("replicas agree", "compare with one device, step by step"),
        ),
    ),
)


@styled
def symptom_to_tool() -> Figure:
    """Draw the decision tree: the symptom, the details to check, the tool."""
    figure, (ax,) = subplots(1, 1, 8, 5.2)
    y = 0.0
    for kind, (symptom, leaves) in enumerate(_TREE):
        middle = y + (len(leaves) - 1) / 2
        color = device_color(kind)
        frame = {"boxstyle": "round,pad=0.35", "ec": color, "fc": "white", "lw": 1.8}
        center = {"ha": "center", "va": "center", "size": 10.5, "color": INK}
        ax.text(1.1, middle, symptom, bbox=frame, **center)
        for observation, tool in leaves:
            line = {"color": color, "lw": 1.4}
            ax.plot((2.15, 2.55, 2.8), (middle, y, y), **line)
            ax.plot((5.85, 6.2), (y, y), **line)
            ax.text(2.9, y, observation, va="center", size=10, color=INK)
            ax.text(6.3, y, tool, va="center", size=10, color=INK, weight="bold")
            y += 1
        y += 0.6
    for x, name in ((0.2, "What do you see?"), (2.9, "More exactly"), (6.3, "Tool")):
        ax.text(x, -1.0, name, va="center", size=10, style="italic", color=INK)
    ax.set(xlim=(0, 11.4), ylim=(y - 0.8, -1.5))
    ax.axis("off")
    return figure
