"""Figures of three parallelism strategies: parameters, communication, bytes.

Chapter: *splitting*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from d2lmulti.backends import element_count
from d2lmulti.models.networks import Model

from .style import (
    INK,
    PALE,
    arrow,
    box,
    canvas,
    device_color,
    device_patches,
    styled,
    subplots,
)

_LIGHT, _DARK = "#E4DCEF", "#6A51A3"  # two kinds of layers, and no device's color
_LINES = (("o", "#888888"), ("s", INK), ("^", _DARK))  # of strategies, not of devices
_WIDTH = 4.1  # inches: text of 9 points is legible on a phone


@styled
def three_ways(
    model: Model, stage_of: Sequence[int], meetings: Sequence[str], images: int
) -> Figure:
    """Draw a network on two devices, split by data, by layers and into stages.

    `stage_of` gives the device of each layer when it is cut into stages; `meetings`
    name the layers that communicate, as a ledger does: "dense 1 forward".
    """
    figure, axes = subplots(1, 3, 4.7, 4.4, width_ratios=[2.4, 2.9, 1.15])
    names = [layer.name.replace("convolution", "conv") for layer in model.layers]
    last = len(names)
    data, tensor, stages = axes
    for device in (0, 1):
        left = 1.35 * device
        _tower(data, left, names, [device] * last, f"{images // 2} images")
        halves = [f"½ {name}" for name in names]
        _tower(tensor, left, halves, [device] * last, f"{images} images")
    _tower(stages, 0, names, stage_of, f"{images} images")
    _add_up_gradients(data, last)
    for i in range(1, last):
        if stage_of[i] != stage_of[i - 1]:
            _cross(stages, 0.5, i)
    for meeting in meetings:
        name, direction = meeting.rsplit(" ", 1)
        i = [layer.name for layer in model.layers].index(name)
        _meet(tensor, i + (1.72 if direction == "forward" else 0.58), direction)
    for ax, title, width, crossing in zip(
        axes,
        ("data", "tensor", "pipeline"),
        (2.35, 2.35, 1),
        (
            "weight gradients,\nonce per step",
            "sums of outputs and\ngradients, in every pair",
            "outputs and\ngradients at\na boundary",
        ),
        strict=True,
    ):
        ax.set(xlim=(-0.05, width + 0.05), ylim=(-1.5, last + 1.1))
        ax.set_title(title)
        ax.text(width / 2, -0.25, crossing, ha="center", va="top", size=9, color=INK)
        ax.axis("off")
    figure.legend(handles=device_patches(2), loc="outside lower center", ncols=2)
    return figure


@styled
def overview() -> Figure:
    """Draw four layers on two devices: split by data, within layers and into stages.

    The figure of the landing page and the README, which is written by
    `python -c "from d2lmulti_book.figures.splitting import overview as o;
    o().savefig('_static/three-ways.png', dpi=240)"`.
    """
    figure, axes = subplots(1, 3, 4.7, 3.8, width_ratios=[2.2, 2.6, 2])
    titles = (
        ("Split the data\n(data parallelism)", "gradients,\nonce per step"),
        (
            "Split every layer\n(tensor parallelism)",
            "activations and\ntheir gradients,\nin every pair",
        ),
        (
            "Split the network\n(pipeline parallelism)",
            "activations and\ntheir gradients,\nat the boundary",
        ),
    )
    layers = [f"layer {i}" for i in (1, 2, 3, 4)]
    halves = [f"½ {name}" for name in layers]
    data, tensor, pipeline = axes
    for device in (0, 1):
        left = 1.35 * device
        _tower(data, left, layers, [device] * 4, "½ batch")
        _tower(tensor, left, halves, [device] * 4, "batch")
    _tower(pipeline, 0, layers, [0, 0, 1, 1], "batch")
    _add_up_gradients(data, 4)
    for below in (2, 4):  # the layers are split in pairs
        _meet(tensor, below + 0.65, "both")
    _cross(pipeline, 0.5, 2)
    for ax, (title, sent), width in zip(axes, titles, (2.35, 2.35, 1), strict=True):
        pad = 0.05 if width > 1 else 0.52  # the words are wider than one tower
        ax.set(xlim=(-pad, width + pad), ylim=(-1.0, 5.1))
        ax.set_title(title, fontsize=9)
        ax.text(width / 2, -0.1, sent, ha="center", va="top", size=9, color=INK)
        ax.axis("off")
    figure.legend(handles=device_patches(2), loc="outside lower center", ncols=2)
    return figure


@styled
def data_parallel_step() -> Figure:
    """Draw one step on two devices: two shards, two replicas, and one sum."""
    figure, ax = canvas(_WIDTH, 3.6, (-0.05, 6.15), (-0.7, 4.7))
    rows = ["half of the batch", "replica: all weights", "gradient of the shard",
            "sum of the gradients", "same new weights"]  # fmt: skip
    for device in (0, 1):
        left = 3.7 * device
        ax.text(left + 1.2, -0.35, f"device {device}", ha="center", va="center")
        for i, words in enumerate(rows):
            color = device_color(device) if i in (0, 2) else PALE
            box(ax, (left, i), (2.4, 0.62), words, color, size=9)
            if i:
                arrow(ax, (left + 1.2, i - 0.38), (left + 1.2, i), head=8)
    arrow(ax, (2.45, 2.8), (3.65, 2.8), "<|-|>", lw=1.4)
    ax.text(3.05, 2.95, "all-reduce", ha="center", va="bottom", size=9, color=INK)
    return figure


def _tower(
    ax: Axes, left: float, names: Sequence[str], devices: Sequence[int], batch: str
) -> None:
    """Draw layers from the bottom up, above their batch."""
    ax.text(left + 0.5, 0.3, batch, ha="center", va="center", size=9, color=INK)
    for i, (name, device) in enumerate(zip(names, devices, strict=True)):
        box(ax, (left, i + 0.8), (1, 0.7), name, device_color(device), size=9)


def _cross(ax: Axes, x: float, below: int) -> None:
    """Draw an arrow across the boundary above the lowest `below` layers of a tower."""
    arrow(ax, (x, below + 0.46), (x, below + 0.84), "<|-|>", 7, zorder=3)


def _add_up_gradients(ax: Axes, layers: int) -> None:
    """Draw an arrow between the two boxes of each layer, which have the gradients."""
    for i in range(layers):
        arrow(ax, (1, i + 1.15), (1.35, i + 1.15), "<|-|>", 6)


def _meet(ax: Axes, y: float, direction: str) -> None:
    """Draw an arrow between two towers: solid forward, dashed backward."""
    dashes = (0, (3, 1.5)) if direction == "backward" else "-"
    arrow(ax, (0.85, y), (1.5, y), "<|-|>", 8, ls=dashes, zorder=3)


@styled
def held(ways: Mapping[str, Sequence[Sequence[Any]]], model: Model) -> Figure:
    """Draw the parameters of every device: a bar per device, a part per layer.

    `ways` gives, for each strategy, one list of tensors per device: the parameters of
    all the model's layers in order, or of some neighboring ones. The color tells
    convolutions from dense layers; it is none of those that stand for devices.
    """
    rows = [len(devices) for devices in ways.values()]
    height = 1.0 + sum(0.5 + 0.28 * n for n in rows)
    figure, axes = subplots(len(ways), 1, _WIDTH, height, sharex=True)
    layer_of = [i for i, layer in enumerate(model.layers) for _ in range(layer.params)]
    for ax, (way, devices) in zip(axes, ways.items(), strict=True):
        first = 0
        for device, tensors in enumerate(devices):
            has_all = len(tensors) == len(layer_of)
            sizes: dict[int, int] = {}
            for i, x in enumerate(tensors):
                layer = layer_of[i if has_all else first + i]
                sizes[layer] = sizes.get(layer, 0) + element_count(x)
            _stack(ax, device, [(model.layers[i].name, n) for i, n in sizes.items()])
            first += 0 if has_all else len(tensors)
        ax.set_title(way)
        ax.set_yticks(range(len(devices)), [f"device {d}" for d in range(len(devices))])
        ax.invert_yaxis()
    axes[-1].set_xlabel("parameters stored")
    axes[-1].xaxis.set_major_locator(plt.MaxNLocator(4))
    axes[-1].xaxis.set_major_formatter("{x:,.0f}")
    handles = [Patch(fc=_LIGHT, ec=INK, label="convolutions"),
               Patch(fc=_DARK, ec=INK, label="dense layers")]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def _stack(ax: Axes, y: int, layers: Sequence[tuple[str, int]]) -> None:
    """Draw one bar of layers, each with the number that ends its name."""
    left = 0
    for name, size in layers:
        kind, number = name.rsplit(" ", 1)
        color, ink = (_DARK, "white") if kind == "dense" else (_LIGHT, INK)
        ax.barh(y, size, left=left, color=color, ec=INK, lw=0.6)
        if size > 2500:  # else the number is wider than its part
            at = (left + size / 2, y)
            ax.text(*at, number, ha="center", va="center", size=9, color=ink)
        left += size


@styled
def bytes_by_batch(
    images: Sequence[int],
    counted: Mapping[str, Sequence[int]],
    formula: Mapping[str, Callable[[Any], Any]],
) -> Figure:
    """Draw bytes per step against the batch: points as counted, lines by formula."""
    figure, (ax,) = subplots(1, 1, _WIDTH, 3.2)
    fine = np.geomspace(images[0], images[-1], 50)
    for i, (way, nbytes) in enumerate(counted.items()):
        marker, color = _LINES[i % 3]
        ax.plot(fine, [formula[way](n) for n in fine], color=color, lw=1)
        ax.plot(images, nbytes, marker, color=color, label=way)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(images, [str(n) for n in images])
    ax.set(xlabel="images in the batch", ylabel="bytes between the devices")
    ax.legend()
    return figure
