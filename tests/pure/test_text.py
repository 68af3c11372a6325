"""The story as a data set: every character once, for a model that knows them all."""

from __future__ import annotations

import numpy as np
import pytest

from d2lmulti import train
from d2lmulti.data import ALPHABET, encode, load, read_story
from d2lmulti.errors import InvalidInput
from d2lmulti.models.transformer import make_transformer


def test_the_pieces_put_together_are_the_story() -> None:
    data, story = load("text"), read_story()
    X, y = np.concatenate([data.train_X, data.test_X]), [*data.train_y, *data.test_y]
    assert X.dtype == data.train_y.dtype == np.int64
    assert X.shape == (171, 32) and len(data.train_X) == 154
    assert (X.ravel() == encode(story[: 171 * 32])).all()
    assert (np.concatenate(y) == encode(story[1 : 171 * 32 + 1])).all()
    assert data.classes == tuple(ALPHABET) and len(set(ALPHABET)) == 36


def test_characters_that_the_model_has_no_row_for_are_refused() -> None:
    few = make_transformer("few", vocabulary=30)
    with pytest.raises(InvalidInput, match="ids below 30, the vocabulary of few"):
        train(1, 32, backend="numpy", model=few, dataset="text")
