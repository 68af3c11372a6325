"""What `train` is asked for, checked before any work; and how one says no later on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..backends.protocol import Backend
from ..checks import (
    check_array,
    check_choice,
    check_count,
    check_finite,
    check_kind,
    check_labels,
    check_list,
    invalid,
)
from ..comm.allreduce import check_algorithm
from ..comm.mesh import check_axes
from ..data.batches import batch_count
from ..data.datasets import Dataset
from ..errors import InvalidInput, framework_errors
from ..models.model import Model
from ..parallel.sharded import PRECISIONS
from ..plans.schedules import SCHEDULES

MOST_EPOCHS = 10**6  # more is a slip of the finger
DTYPES = ("float32", "float64")


def check_mesh(mesh: Any) -> dict[str, int]:
    """Refuse what does not give axes of a mesh their sizes."""
    if not isinstance(mesh, Mapping):
        hint = "pass mesh={'data': 2, 'tensor': 2}, or --mesh data=2,tensor=2"
        raise invalid("the sizes of the axes as mesh", mesh, hint)
    return check_axes(dict(mesh))


def check_counts(batch_size: Any, epochs: Any, seed: Any) -> tuple[int, int, int]:
    """Give the settings back as Python's numbers, or refuse those out of range."""
    return (
        check_count("batch_size", batch_size),
        check_count("epochs", epochs, max=MOST_EPOCHS),
        check_count("seed", seed, min=0, max=None),
    )


def check_options(options: dict[str, Any]) -> None:
    """Refuse values that no strategy takes; None is left to the strategy."""
    given = {name: value for name, value in options.items() if value is not None}
    if "algorithm" in given:
        check_algorithm(given["algorithm"])
    for name in ("bucket_bytes", "accumulate", "micro_batches", "stages"):
        if name in given:
            check_count(name, given[name])
    if "mesh" in given:
        check_mesh(given["mesh"])
    if "precision" in given:
        check_choice("precision", given["precision"], PRECISIONS)
    if "schedule" in given and isinstance(given["schedule"], (str, int, float)):
        check_choice("schedule", given["schedule"], SCHEDULES)


def check_devices(B: Backend, devices: Any) -> list[Any]:
    """Refuse all but a list of devices that the backend can use."""
    check_list("devices", devices, "devices", hint="use devices(1)")
    for device in devices:
        B.native(device)
    return list(devices)


def check_data(data: Any) -> Dataset:
    """Give a data set back, its targets as int64, or refuse what is none.

    Examples are arrays of finite numbers, of one shape and dtype in training and test;
    targets are whole numbers, one row an example, from 0 to len(classes) - 1.
    """
    hint = "use digits, fashion_mnist or text, or make a Dataset"
    check_kind("dataset", data, Dataset, "a data set", hint)
    check_list("classes", data.classes, "names, one a class")
    for name in ("train", "test"):
        X, y = getattr(data, f"{name}_X"), getattr(data, f"{name}_y")
        check_array(f"{name}_X", X, "fiu", "numbers")
        check_labels(f"{name}_y", y, len(data.classes))
        if len(X) != len(y) or not X.size:
            raise InvalidInput(
                f"expected at least 1 example and one label for each, got {len(X)} "
                f"examples of shape {X.shape[1:]} and {len(y)} labels to {name}"
            )
        check_finite(f"{name}_X", X)
    forms = [(X.shape[1:], X.dtype) for X in (data.train_X, data.test_X)]
    if forms[0] != forms[1]:
        raise InvalidInput(
            "expected examples of one shape and dtype to train and to test, got "
            f"{' and '.join(f'{shape} {dtype}' for shape, dtype in forms)}"
        )
    targets = [y.astype(np.int64, copy=False) for y in (data.train_y, data.test_y)]
    return replace(data, train_y=targets[0], test_y=targets[1])


def check_fits(
    B: Backend, data: Dataset, model: Model, params: Sequence[np.ndarray]
) -> None:
    """Refuse data that the model cannot be trained on with these parameters.

    One example is tried: a model is a function, and says itself what it takes.
    """
    X, y = data.train_X, data.train_y
    dtype = str(params[0].dtype)
    kind = "ids of characters" if X.dtype.kind == "i" else "images"
    wanted = "ids of characters" if model.vocabulary else "images"
    if kind != wanted:
        hint = "model='transformer'" if X.dtype.kind == "i" else "dataset='text'"
        raise InvalidInput(
            f"expected {wanted} for {model.name}, got {kind} from {data.name}; use "
            f"{hint}"
        )
    if model.vocabulary and not 0 <= X.min() <= X.max() < model.vocabulary:
        raise InvalidInput(
            f"expected ids below {model.vocabulary}, the vocabulary of {model.name}, "
            f"got {X.min()} to {X.max()}; make the model with a larger vocabulary"
        )
    if not model.vocabulary and str(X.dtype) != dtype:
        raise InvalidInput(
            f"expected a data set of dtype {dtype}, as the weights have, got "
            f"{X.dtype}; make it with load({data.name!r}, {dtype!r})"
        )
    one = B.array(X[:1])
    with framework_errors(model.name, one), B.pause():
        logits = model.forward_eval(B, [B.array(p) for p in params], one)
        rows, classes = B.numpy(logits).shape
    if rows != y[:1].size or classes < len(data.classes):
        raise InvalidInput(
            f"expected a row of at least {len(data.classes)} numbers for each of "
            f"{y[:1].size} targets of an example, got {rows} rows of {classes} from "
            f"{model.name}; take another model for {data.name}"
        )


def check_last_batch(n: int, batch_size: int, shares: int, of: str) -> None:
    """Refuse a batch size whose last batch has fewer examples than it is cut into."""
    smallest = n - (batch_count(n, batch_size) - 1) * batch_size
    if smallest < shares:
        raise InvalidInput(
            f"the last batch of every epoch would hold {smallest} of {n} examples, "
            f"fewer than {shares} {of}; choose another batch size or fewer {of}"
        )
