"""The pictures show the parts that the devices hold and the bytes that moved."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

from d2lmulti import devices, get_backend, get_split, split_params
from d2lmulti.models.transformer import make_transformer
from d2lmulti_book.figures.layers import layer_bytes, who_holds
from d2lmulti_book.figures.style import device_colour

SPLIT = get_split(make_transformer("small", 12, 8, 24, heads=12, blocks=1))


@pytest.mark.parametrize("k", [1, 3])
def test_every_weight_shows_its_parts(k: int) -> None:
    B = get_backend("numpy")
    start = [B.array(p) for p in SPLIT.whole.initial(np.random.default_rng(0))]
    shards = split_params(start, devices(k, "numpy"), SPLIT)
    figure = who_holds(SPLIT, shards)
    (ax,) = figure.axes
    texts = [text.get_text() for text in ax.texts]
    assert texts[::2] == [
        *["embedding"] * 2, *["attention 1"] * 2, *["MLP 1"] * 2, "head"
    ]  # fmt: skip
    assert texts[1] == "12 x 24" and texts[5] == "24 x 72"  # the whole, not the shard
    owners = [to_hex(patch.get_facecolor()).upper() for patch in ax.patches]
    one = [device_colour(rank) for rank in range(k)]
    grey = "#DDDDDD"  # positions, which all hold; then queries, keys, values
    assert owners == [*one, grey, *one * 3, *one * 4]
    plt.close(figure)


def test_a_pair_of_bars_for_every_layer() -> None:
    moved = {"dense 2 forward": 3000, "dense 1 backward": 500, "dense 2 backward": 100}
    figure = layer_bytes(moved)
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["dense 2", "dense 1"]
    assert [bar.get_width() for bar in ax.patches] == [3.0, 0.0, 0.1, 0.5]
    plt.close(figure)
