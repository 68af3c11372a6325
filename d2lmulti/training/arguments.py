"""Checks of the data that `train` is given, for what would train wrongly in silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..backends.protocol import Backend
from ..checks import check_finite, check_kind, check_labels
from ..data.batches import batch_count
from ..data.datasets import Dataset, load
from ..errors import InvalidInput, framework_errors
from ..models.model import Model

DTYPES = ("float32", "float64")


def check_data(data: str | Dataset, dtype: str) -> Dataset:
    """Return a data set, loaded by its name or given, with targets as int64.

    Raises `InvalidInput` for examples that are not finite and for targets that are not
    classes: a wrong one would change the losses, or on some backends be another class.
    """
    if isinstance(data, str):
        data = load(data, dtype)
    check_kind("dataset", data, Dataset, "a data set")
    for X, y in ((data.train_X, data.train_y), (data.test_X, data.test_y)):
        check_labels(f"labels of {data.name}", y, len(data.classes))
        check_finite(f"examples of {data.name}", X)
        if not 0 < len(X) == len(y):
            raise InvalidInput(
                f"expected one label per example in {data.name}, got {len(X)} examples "
                f"and {len(y)} labels"
            )
    targets = [y.astype(np.int64, copy=False) for y in (data.train_y, data.test_y)]
    return replace(data, train_y=targets[0], test_y=targets[1])


def check_fits(
    B: Backend, data: Dataset, model: Model, params: Sequence[np.ndarray]
) -> None:
    """Check that the model takes the data, and has logits for all its classes."""
    X, y = data.train_X, data.train_y
    dtypes = {str(X.dtype), str(data.test_X.dtype)}
    expected = {"int32", "int64"} if model.vocabulary else {str(params[0].dtype)}
    if not dtypes <= expected:
        kind = "ids of characters" if model.vocabulary else "images"
        raise InvalidInput(
            f"expected {kind} of dtype {' or '.join(sorted(expected))} for "
            f"{model.name}, got {', '.join(sorted(dtypes))} from {data.name}; choose "
            "another data set or dtype"
        )
    if model.vocabulary and not 0 <= X.min() <= X.max() < model.vocabulary:
        raise InvalidInput(
            f"expected ids below {model.vocabulary}, the vocabulary of {model.name}, "
            f"got {X.min()} to {X.max()}; make the model with a larger vocabulary"
        )
    one = B.array(X[:1])
    with framework_errors(model.name, one), B.pause():
        rows, classes = model.forward_eval(B, [B.array(p) for p in params], one).shape
    if rows != y[:1].size or classes < len(data.classes):
        raise InvalidInput(
            f"expected at least {len(data.classes)} logits for each of {y[:1].size} "
            f"targets of an example, got {rows} rows of {classes} from {model.name}"
        )


def check_last_batch(n: int, batch_size: int, parts: int) -> None:
    """Check that the short last batch has an example for each of its parts."""
    smallest = n - (batch_count(n, batch_size) - 1) * batch_size
    if smallest < parts:
        raise InvalidInput(
            f"the last batch of every epoch would hold {smallest} of {n} examples, "
            f"fewer than the {parts} parts it is cut into; choose another batch size, "
            "or fewer devices, passes or micro-batches"
        )
