"""Pictures of the three ways to split: the bars are what the devices hold."""

from __future__ import annotations

import numpy as np
import pytest

from d2lmulti import get_backend
from d2lmulti.models import get_model
from d2lmulti_book.figures import splitting as plot_splitting


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


def test_the_three_ways_show_whose_each_layer_is_and_every_meeting():
    alexnet = get_model("alexnet")
    meetings = ["convolution 2 forward", "dense 3 forward", "dense 2 backward"]
    figure = plot_splitting.three_ways(alexnet, [0] * 3 + [1] * 5, meetings, 64)
    data, layer, stages = figure.axes
    towers = [
        [p for p in ax.patches if type(p).__name__ == "Rectangle"]
        for ax in figure.axes
    ]  # fmt: skip
    assert [len(tower) for tower in towers] == [16, 16, 8]
    colours = [box.get_facecolor() for box in towers[2]]
    assert colours == [colours[0]] * 3 + [colours[-1]] * 5 != [colours[0]] * 8
    arrows = [
        [p.get_linestyle() != "-" for p in ax.patches[16:]] for ax in (data, layer)
    ]
    assert sorted(arrows[1]) == [False, False, True] and arrows[0] == [False]
    words = [text.get_text() for text in layer.texts]
    assert words.count("½ dense 3") == words.count("64 images") == 2
    assert [text.get_text() for text in data.texts].count("32 images") == 2
    assert len(stages.patches) == 8


def test_the_overview_shows_where_each_way_of_splitting_communicates():
    data, tensor, pipeline = plot_splitting.overview().axes

    def parts(ax, kind):
        return [p for p in ax.patches if type(p).__name__ == kind]

    boxes = [len(parts(ax, "Rectangle")) for ax in (data, tensor, pipeline)]
    arrows = [len(parts(ax, "FancyArrowPatch")) for ax in (data, tensor, pipeline)]
    assert (boxes, arrows) == ([8, 8, 4], [1, 2, 1])
    colours = [box.get_facecolor() for box in parts(pipeline, "Rectangle")]
    assert colours[0] == colours[1] != colours[2] == colours[3]
