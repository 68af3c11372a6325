"""The picture of losses beside a floor shows every loss and the floor."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from d2lmulti_book.figures.built_in import losses_with_floor


def test_curves_and_floor() -> None:
    figure = losses_with_floor({"one": [2.0, 0.5], "two": [2.0, 1.6]}, 1.46)
    (ax,) = figure.axes
    one, two, floor = (list(line.get_ydata()) for line in ax.lines)
    assert (one, two, floor) == ([2.0, 0.5], [2.0, 1.6], [1.46, 1.46])
    assert list(ax.lines[0].get_xdata()) == [1, 2]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two"]
    plt.close(figure)
