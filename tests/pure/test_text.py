"""The story as a data set: every character once, and which models it is refused for."""

from __future__ import annotations

import numpy as np
import pytest

from d2lmulti import train
from d2lmulti.data import ALPHABET, cut_pieces, decode, encode, load, read_story, text
from d2lmulti.errors import InvalidInput
from d2lmulti.models.transformer import make_transformer


def test_the_pieces_put_together_are_the_story() -> None:
    data, story = load("text"), read_story()
    X, y = np.concatenate([data.train_X, data.test_X]), [*data.train_y, *data.test_y]
    assert X.dtype == data.train_y.dtype == np.int64
    assert X.shape == (171, 32) and len(data.train_X) == 154
    assert decode(X.ravel()) == story[: 171 * 32]
    assert decode(np.concatenate(y)) == story[1 : 171 * 32 + 1]
    assert data.classes == tuple(ALPHABET) and len(set(ALPHABET)) == 36


def test_no_piece_is_in_both_parts() -> None:
    data = text(length=16)
    assert len(data.train_X) + len(data.test_X) == 343
    assert not {p.tobytes() for p in data.train_X} & {p.tobytes() for p in data.test_X}


@pytest.mark.parametrize("length", [0, 550, -1])
def test_pieces_that_are_too_short_or_too_long_are_refused(length: int) -> None:
    with pytest.raises(InvalidInput, match=f"from 1 to 549 as length, got {length}"):
        cut_pieces(read_story(), length)


def test_a_strange_character_is_named() -> None:
    with pytest.raises(InvalidInput, match="got 'B'"):
        encode("a Bell")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model": "lenet", "dataset": "text"},
            "lenet, got int64 from text",
        ),
        (
            {"model": "transformer", "dataset": "digits"},
            "transformer, got float32 from digits",
        ),
        (
            {"model": make_transformer("few", vocabulary=30), "dataset": "text"},
            "ids below 30, the vocabulary of few, got 0 to 35",
        ),
    ],
)
def test_data_that_do_not_fit_the_model_are_refused(settings, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        train(1, 32, backend="numpy", **settings)
