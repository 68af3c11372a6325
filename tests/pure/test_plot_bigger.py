"""Pictures of a mesh, of a ring and of slots show what was counted."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

from d2lmulti.comm.mesh import Mesh
from d2lmulti.errors import InvalidInput
from d2lmulti_book.figures.attention_blocks import needed_scores
from d2lmulti_book.figures.experts import slots
from d2lmulti_book.figures.meshes import moved_on_mesh
from d2lmulti_book.figures.style import device_colour


def test_a_line_for_each_pair_as_thick_as_its_bytes() -> None:
    mesh = Mesh(data=2, tensor=2)
    figure = moved_on_mesh(mesh, {(0, 1): 1000, (1, 0): 2000, (1, 3): 6000})
    (ax,) = figure.axes
    lines = [line for line in ax.lines if line.get_marker() == "None"]
    colours = [to_hex(line.get_color()).upper() for line in lines]
    assert colours == [device_colour(1), device_colour(0)]  # along tensor, along data
    assert [line.get_linewidth() for line in lines] == [4.0, 7.0]
    assert [t.get_text() for t in ax.texts] == ["3 kB", "6 kB", "0", "1", "2", "3"]
    plt.close(figure)


def test_what_no_mesh_of_three_axes_can_show_is_refused() -> None:
    with pytest.raises(InvalidInput, match="along one axis, got one between"):
        moved_on_mesh(Mesh(data=2, tensor=2), {(0, 3): 8})
    four = Mesh(data=1, tensor=1, pipeline=1, sequence=2)
    with pytest.raises(InvalidInput, match="at most 3 axes"):
        moved_on_mesh(four, {})


def test_blocks_show_the_scores_whose_key_is_not_later() -> None:
    figure = needed_scores({"neighbours": np.split(np.arange(4), 2)})
    (ax,) = figure.axes
    masks = [image.get_array().astype(int).tolist() for image in ax.images]
    half, none, full = [[1, 0], [1, 1]], [[0, 0]] * 2, [[1, 1]] * 2
    assert masks == [half, none, half, full]  # rank 0, turn by turn, then rank 1
    assert [text.get_text() for text in ax.texts] == ["75", "100"]
    plt.close(figure)


def test_tokens_fill_slots_in_their_order_and_the_rest_are_dropped() -> None:
    figure = slots([0, 0, 0, 1, 1, 0], experts=2, parts=2, factor=1)
    shown = [
        [(round(p.get_x()), p.get_y(), to_hex(p.get_facecolor())) for p in ax.patches]
        for ax in figure.axes
    ]
    first, second = device_colour(0).lower(), device_colour(1).lower()
    grey, white = "#dddddd", "#ffffff"
    whole = [(0, 0, first), (1, 0, first), (2, 0, first), (0, 1, second)]
    assert shown[0] == [*whole, (1, 1, second), (3, 0, grey), (2, 1, white)]
    assert shown[1] == [(0, 0, first), (1, 0, first), (2, 0, grey),
                        (0, 1, white), (1, 1, white)]  # fmt: skip
    assert shown[2] == [(0, 1, second), (1, 1, second), (0, 0, second), (1, 0, white)]
    plt.close(figure)
