"""Pictures of the three ways to split: the bars are what the devices hold."""

from __future__ import annotations

import numpy as np
import pytest

from d2lmulti import get_backend, plot_splitting
from d2lmulti.models import get_model


@pytest.fixture
def params():
    B = get_backend("numpy")
    return [B.array(p) for p in get_model("lenet").initial(np.random.default_rng(0))]


def lengths(ax):
    """Length of every device's bar."""
    ends = {}
    for bar in ax.patches:
        device = round(bar.get_y() + bar.get_height() / 2)
        ends[device] = max(ends.get(device, 0), bar.get_x() + bar.get_width())
    return [ends[device] for device in sorted(ends)]


def test_bars_are_as_long_as_what_the_devices_hold(params):
    ways = {"data": [params, params, params], "model": [params[:4], params[4:]]}
    figure = plot_splitting.held(ways, get_model("lenet"))
    assert [ax.get_title() for ax in figure.axes] == ["data", "model"]
    assert lengths(figure.axes[0]) == [129068] * 3
    assert lengths(figure.axes[1]) == [220 - 20 + 25050, 102528 + 1290]


def test_a_layer_keeps_its_colour_on_whichever_device_it_is(params):
    ways = {"data": [params], "model": [params[:4], params[4:]]}
    figure = plot_splitting.held(ways, get_model("lenet"))
    whole, stages = ([bar.get_facecolor() for bar in ax.patches] for ax in figure.axes)
    assert whole == stages and len(set(whole)) == 4


def test_points_are_what_was_counted_and_lines_the_formula():
    figure = plot_splitting.bytes_by_batch(
        (1, 4), {"data": [7, 7], "model": [3, 12]},
        {"data": lambda n: 7, "model": lambda n: 3 * n},
    )  # fmt: skip
    line, points = figure.axes[0].lines[2:]
    assert list(points.get_ydata()) == [3, 12]
    assert list(line.get_ydata()[[0, -1]]) == pytest.approx([3, 12])
