"""Pictures of the three ways to split a network, from what their devices hold and send.

Chapter: *splitting*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from .backends.sizes import element_count
from .models.model import Model
from .plot import INK, device_colour

_MARKERS = ("o", "s", "^")


def held(ways: Mapping[str, Sequence[Sequence[Any]]], model: Model) -> Figure:
    """Draw the parameters that every device holds: a bar a device, a colour a layer.

    `ways` gives, for each way, one list of tensors a device: the parameters of all the
    model's layers in order, or of some neighbouring ones.
    """
    figure, axes = plt.subplots(
        1, len(ways), figsize=(9, 2.6), sharex=True, layout="constrained"
    )
    layers = [i for i, layer in enumerate(model.layers) for _ in range(layer.params)]
    for ax, (way, devices) in zip(axes, ways.items(), strict=True):
        first = 0
        for device, tensors in enumerate(devices):
            whole = len(tensors) == len(layers)
            left = 0
            for i, x in enumerate(tensors):
                layer = layers[i if whole else first + i]
                size = element_count(x)
                label = model.layers[layer].name if not left or i % 2 == 0 else None
                ax.barh(
                    device, size, left=left, color=device_colour(layer), label=label
                )
                left += size
            first += 0 if whole else len(tensors)
        ax.set_title(way, size=11, color=INK)
        ax.set_yticks(range(len(devices)), [f"device {d}" for d in range(len(devices))])
        ax.invert_yaxis()
        ax.set_xlabel("parameters held")
        ax.xaxis.set_major_locator(plt.MaxNLocator(3))
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), loc="outside lower center", ncols=4,
                  frameon=False, fontsize=9)  # fmt: skip
    return figure


def bytes_by_batch(
    images: Sequence[int],
    counted: Mapping[str, Sequence[int]],
    formula: Mapping[str, Callable[[Any], Any]],
) -> Figure:
    """Draw bytes a step against the batch: points as counted, lines by formula."""
    figure, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    fine = np.geomspace(images[0], images[-1], 50)
    for i, (way, found) in enumerate(counted.items()):
        colour = device_colour(i)
        ax.plot(fine, [formula[way](n) for n in fine], color=colour, lw=1)
        ax.plot(images, found, _MARKERS[i % 3], color=colour, label=way)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(images, [str(n) for n in images])
    ax.set_xlabel("images in the batch")
    ax.set_ylabel("bytes between the devices")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return figure
