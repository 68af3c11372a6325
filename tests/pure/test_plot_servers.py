"""The pictures show the events of the run, no more and no less."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from d2lmulti.data.datasets import Dataset
from d2lmulti.models.mlp import initial_mlp, mlp
from d2lmulti.models.model import Model
from d2lmulti.observe.push_pull import worker_seconds
from d2lmulti.training.on_servers import ServerHistory, train_on_servers
from d2lmulti_book.figures import servers as plot_servers


@pytest.fixture(scope="module")
def history() -> ServerHistory:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(24, 4)), rng.integers(0, 3, 24)
    tiny = Model("tiny", lambda rng: initial_mlp(rng, (4, 3)), mlp, mlp)
    return train_on_servers(
        3, 6, 0.1, mode="async", backend="numpy", model=tiny,
        dataset=Dataset("noise", X, y, X, y, ("a", "b", "c")),
        seconds=worker_seconds(3, 99, jitter=0.3),
    )  # fmt: skip


def test_a_bar_for_every_gradient(history: ServerHistory) -> None:
    figure = plot_servers.timeline({"free": history}, history.seconds)
    (ax,) = figure.axes
    *workers, updates = ax.collections
    bars = [path.get_extents() for bars in workers for path in bars.get_paths()]
    assert len(bars) == len(history.pushes) == 12
    times = [push.seconds for push in history.pushes]
    assert sorted(bar.x1 for bar in bars) == pytest.approx(times)
    lines = sorted(path.get_extents().x0 for path in updates.get_paths())
    assert lines == pytest.approx(sorted({*times}))
    plt.close(figure)


def test_a_line_for_every_run(history: ServerHistory) -> None:
    runs = {"free": [history.curve, history.curve[:2]]}
    figure = plot_servers.loss_over_time({"one": runs, "two": runs}, 9, 0.7)
    for ax in figure.axes:
        *lines, goal = ax.lines
        assert [[*map(tuple, line.get_xydata())] for line in lines] == runs["free"]
        assert {*goal.get_ydata()} == {0.7}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["free"]
    plt.close(figure)


def test_the_bars_of_a_placement_hold_everything() -> None:
    figure = plot_servers.placements([5, 3, 9], 2)
    for ax in figure.axes:
        assert sum(bar.get_width() for bar in ax.patches) == 17
    plt.close(figure)
