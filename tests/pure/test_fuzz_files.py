"""Hundreds of damaged files, by seed: each raises a clear error or reads as before.

HYPOTHESIS_PROFILE=thorough takes thirty times as many.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pure.idx_files import write_set

import d2lmulti
from d2lmulti.errors import DataCorrupt
from d2lmulti.models.networks import make_mlp
from d2lmulti.training.checkpoint import load_checkpoint

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
MANY = 500
SEEDS = range(30 if THOROUGH else 1)
TINY = make_mlp("tiny", (784, 2, 10))


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
