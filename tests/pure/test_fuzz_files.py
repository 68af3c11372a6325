"""Hundreds of damaged files, by seed: each raises a clear error or reads as before.

HYPOTHESIS_PROFILE=thorough takes thirty times as many.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from pure.idx_files import write_set

import d2lmulti
from d2lmulti.errors import D2LMultiError, DataCorrupt, InvalidInput
from d2lmulti.models.networks import make_mlp
from d2lmulti.training.checkpoint import load_checkpoint, save_checkpoint

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
MANY = 500
SEEDS = range(30 if THOROUGH else 1)
TINY = make_mlp("tiny", (784, 2, 10))
SEAL = b"d2lmulti checkpoint 004 sha256 "


def run(path: Path, **more: Any) -> d2lmulti.History:
    """Train for one epoch of three steps, or for what is missing of two."""
    data = d2lmulti.load("digits").first(20)
    data = replace(data, test_X=data.test_X[:4], test_y=data.test_y[:4])
    settings = {"epochs": 1, "checkpoint": path, "backend": "numpy", **more}
    return d2lmulti.train(2, 8, dataset=data, model=TINY, **settings)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "run.npz"
    run(path)
    return path.read_bytes()


# -- damage ----------------------------------------------------------------------------


def flip(rng: Random, content: bytes) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: Random, content: bytes) -> bytes:
    """Lose, double, blank or add a piece somewhere."""
    first, last = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    piece = content[first:last]
    return rng.choice([
        content[:last],
        content[first:],
        content[:first] + content[last:],
        content[:first] + piece + piece + content[last:],
        content[:first] + bytes(len(piece)) + content[last:],
        content[:first] + rng.randbytes(rng.randrange(1, 40)) + content[first:],
        content + piece,
    ])  # fmt: skip


def fuzz(seed: int, good: bytes, accepts: Callable[[bytes], bool]) -> dict[str, int]:
    """Count what becomes of damaged files; `accepts` raises if one reads wrongly."""
    rng, counts = Random(seed), {"equal": 0, "refused": 0}
    for i in range(MANY):
        content = (flip if i % 2 else cut)(rng, good)
        counts["equal" if accepts(content) else "refused"] += 1
    assert counts["refused"] > 0.9 * MANY
    return counts


@pytest.mark.parametrize("seed", SEEDS)
def test_no_damaged_checkpoint_loads(
    seed: int, good: bytes, tmp_path: Path, record_property: Callable
) -> None:
    path = tmp_path / "run.npz"

    def accepts(content: bytes) -> bool:
        path.write_bytes(content)
        try:
            load_checkpoint(path)
        except DataCorrupt:
            assert path.read_bytes() == content
            return False
        assert content == good
        return True

    assert accepts(good)
    record_property("fuzzed", ("checkpoints", fuzz(seed, good, accepts)))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_damaged_fashion_mnist_loads(
    seed: int,
    data_folder: Path,
    record_property: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_set(data_folder / "fashion_mnist", monkeypatch)
    path = Random(seed).choice(sorted(folder.iterdir()))
    good = path.read_bytes()

    def accepts(content: bytes) -> bool:
        path.write_bytes(content)
        try:
            d2lmulti.load("fashion_mnist")
        except DataCorrupt as error:
            assert path.name in str(error)
            return False
        assert content == good
        return True

    assert accepts(good)
    record_property("fuzzed", ("Fashion-MNIST files", fuzz(seed, good, accepts)))


# -- files with a checksum that fits ---------------------------------------------------


def changed(good: bytes, change: Callable[[dict, dict], Any], seal: bytes) -> bytes:
    """Change the text and the arrays of a checkpoint; its checksum fits again."""
    with np.load(io.BytesIO(good)) as file:
        arrays = dict(file)
    text = json.loads(arrays.pop("about").tobytes())
    change(text, arrays)
    about = np.frombuffer(json.dumps(text).encode(), np.uint8)
    np.savez(buffer := io.BytesIO(), about=about, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = seal + b"0" * 64
    content = buffer.getvalue()[:-64]
    return content + hashlib.sha256(content).hexdigest().encode()


def put(*path: Any) -> Callable[[dict, dict], None]:
    """Put the last argument where the ones before it lead to."""
    *inner, last, value = path

    def change(text: Any, _: dict) -> None:
        for key in inner:
            text = text[key]
        text[last] = value

    return change


CHANGES: dict[str, Callable[[dict, dict], Any]] = {
    "a field missing": lambda text, _: text.pop("seconds"),
    "a field more": put("pickle", 1),
    "another epoch": put("epoch", 2),
    "a step below zero": put("step", -3),
    "a step too far": put("step", 10**6),
    "no loss": put("loss", float("nan")),
    "no settings": put("settings", {}),
    "another dtype": put("settings", "dtype", "float64"),
    "other logits": put("settings", "logits", [1.0, 2.0, 3.0]),
    "another model": put("settings", "model", "big"),
    "another batch size": put("settings", "batch_size", 9),
    "other data": put("settings", "data", "digits"),
    "an epoch without accuracy": lambda text, _: text["epochs"][0].pop("accuracy"),
    "a parameter missing": lambda _, arrays: arrays.pop("params/3"),
    "no state": lambda _, arrays: [arrays.pop(f"state/{i}") for i in range(4)],
    "another shape": lambda _, a: a.update({"params/0": np.zeros((2, 784), "f4")}),
    "a state of another shape": lambda _, a: a.update({"state/0": np.zeros(3, "f4")}),
    "another number type": lambda _, a: a.update({"params/1": np.zeros(2)}),
    "pickled objects": lambda _, a: a.update({"params/1": np.array([{}, {}])}),
}


@pytest.mark.parametrize("cause", CHANGES)
def test_a_checkpoint_of_another_run_does_not_resume(
    cause: str, good: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    path.write_bytes(changed(good, CHANGES[cause], SEAL))
    before = path.read_bytes()
    with pytest.raises((DataCorrupt, InvalidInput)):
        run(path, resume=True, epochs=2)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["run.npz"]


@pytest.mark.parametrize("other", ["003", "005"])
def test_another_format_is_named(other: str, good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    seal = SEAL.replace(b"004", other.encode())
    path.write_bytes(changed(good, lambda *_: None, seal))
    with pytest.raises(DataCorrupt, match=f"format {int(other)} .* format 4"):
        load_checkpoint(path)
    path.write_bytes(changed(good, lambda *_: None, SEAL))
    assert load_checkpoint(path).epoch == 1


def test_what_could_not_be_read_is_not_saved(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    path.write_bytes(good)
    fine = load_checkpoint(path)
    for change in (
        {"loss": float("nan")},
        {"epoch": -1},
        {"epochs": []},
        {"step": 1.5},
        {"settings": {}},
        {"params": [p.astype("float64") for p in fine.params]},
    ):
        with pytest.raises(D2LMultiError):
            save_checkpoint(path, replace(fine, **change))
    assert path.read_bytes() == good
    save_checkpoint(path, fine)
    assert path.read_bytes() == good


SAVE = f"""
import os, sys, time
sys.path[:0] = {sys.path}
from d2lmulti.training.checkpoint import load_checkpoint, save_checkpoint
checkpoint = load_checkpoint(sys.argv[1])
checkpoint.step = 2
os.fsync = lambda file: print("writing", flush=True) or time.sleep(100)
save_checkpoint(sys.argv[1], checkpoint)
"""


def test_a_kill_in_the_middle_of_a_save_loses_nothing(
    good: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    path.write_bytes(good)
    with subprocess.Popen(
        [sys.executable, "-c", SAVE, path], stdout=subprocess.PIPE, text=True
    ) as saving:
        assert saving.stdout is not None and saving.stdout.readline() == "writing\n"
        saving.kill()
    assert path.read_bytes() == good and len(os.listdir(tmp_path)) == 2
    run(path, resume=True, epochs=2)
    assert os.listdir(tmp_path) == ["run.npz"]
