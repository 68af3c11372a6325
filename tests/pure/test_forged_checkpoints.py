"""Checkpoints that somebody made up: each is refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pure.forge import about, members, npy, packed, retold
from pure.forged import FORGED

import d2lmulti
from d2lmulti.errors import D2LMultiError, DataCorrupt, InvalidInput
from d2lmulti.models.networks import make_mlp
from d2lmulti.training.checkpoint import load_checkpoint, save_checkpoint

TINY = make_mlp("tiny", (784, 2, 10))


@cache
def few() -> d2lmulti.Dataset:
    some = d2lmulti.load("digits").first(20)
    return replace(some, test_X=some.test_X[:4], test_y=some.test_y[:4])


def run(path: Path, **more: Any) -> d2lmulti.History:
    """Train for one epoch of three steps, or for what is missing of two."""
    settings = {"epochs": 1, "checkpoint": path, "backend": "numpy", **more}
    return d2lmulti.train(2, 8, dataset=few(), model=TINY, **settings)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "run.npz"
    run(path)
    return path.read_bytes()


@pytest.mark.parametrize("cause", FORGED)
def test_a_forged_checkpoint_is_refused(
    cause: str, good: bytes, tmp_path: Path
) -> None:
    forge, message = FORGED[cause]
    path = tmp_path / "run.npz"
    path.write_bytes(forged := forge(good))
    with pytest.raises((DataCorrupt, InvalidInput), match=f"(?s){message}") as caught:
        run(path, resume=True, epochs=2)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)
    assert path.read_bytes() == forged
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


def test_the_tools_of_this_test_make_good_checkpoints_too(
    good: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    for same in (packed(members(good)), retold(good, about(good))):
        path.write_bytes(same)
        again = load_checkpoint(path)
        path.write_bytes(good)
        assert vars(again).keys() == vars(load_checkpoint(path)).keys()
        assert np.array_equal(again.params[0], load_checkpoint(path).params[0])


def test_a_checkpoint_is_an_npz_of_the_same_bytes_for_the_same_run(
    good: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    path.write_bytes(good)
    with np.load(path, allow_pickle=False) as arrays:
        assert arrays["params/0"].shape == (784, 2)
    save_checkpoint(path, load_checkpoint(path))
    assert path.read_bytes() == good


def test_what_could_not_be_read_is_not_written(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    path.write_bytes(good)
    fine = load_checkpoint(path)
    for bad, message in (
        (replace(fine, step=1, loss=float("nan")), "its loss cannot be nan"),
        (replace(fine, epoch=2), "the history of its 2 epochs"),
        (replace(fine, params=[np.zeros(2, int)]), "an array is of int64"),
        (replace(fine, settings={}), "its settings cannot be {}"),
        (replace(fine, settings={**fine.settings, "seed": 10**200}), "too many digits"),
        (replace(fine, settings={**fine.settings, "x": "x" * 2**20}), "longer than"),
        (replace(fine, settings={**fine.settings, "lr": object}), "its settings"),
    ):
        with pytest.raises(InvalidInput, match=f"cannot save .*{message}"):
            save_checkpoint(path, bad)
    assert path.read_bytes() == good


def no_state(text: dict[str, Any], some: list) -> None:
    text["counts"]["state"] = 0
    del some[6:]


def another_shape(text: dict[str, Any], some: list) -> None:
    some[6] = some[6][0], npy(np.zeros(3, "<f4"))


STATES = {
    "no state": (no_state, "an optimizer state of 4 arrays as this run has, got 0"),
    "another shape": (another_shape, "an optimizer state of 4 arrays .* other shapes"),
}


@pytest.mark.parametrize("cause", STATES)
def test_a_state_that_does_not_fit_is_refused_before_a_step(
    cause: str, good: bytes, tmp_path: Path
) -> None:
    change, message = STATES[cause]
    text, some = about(good), members(good)
    change(text, some)
    some[0] = some[0][0], npy(np.frombuffer(json.dumps(text).encode(), np.uint8))
    (tmp_path / "run.npz").write_bytes(packed(some))
    with pytest.raises(D2LMultiError, match=message):
        run(tmp_path / "run.npz", resume=True, epochs=2)
