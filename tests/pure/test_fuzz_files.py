"""Thousands of damaged and made-up files: refused in words, or as good as they were.

A file counts as accepted only if the run that goes on from it ends with the same bits.
Seeded; HYPOTHESIS_PROFILE=thorough takes thirty times as many.
"""

from __future__ import annotations

import gzip
import os
import sys
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from pure.forge import (
    about,
    cut,
    flip,
    flip_headers,
    members,
    npy,
    packed,
    reheaded,
    retold,
    sealed,
    swap,
)
from pure.forged import FORGED
from pure.idx_files import idx
from pure.test_forged_checkpoints import run

from d2lmulti.backends.numpy import numpy as as_array
from d2lmulti.data.idx import read_idx
from d2lmulti.errors import DataCorrupt, InvalidInput

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
MANY = 700 if THOROUGH else 350
SEEDS = range(30 if THOROUGH else 1)
MEMORY, SECONDS = 2**30, 5.0
# What never stands in a checkpoint, whatever the field.
NONSENSE = [-1, -3.5, True, None, "", "1", [], {}, [[]], float("nan"), float("inf"),
            10**99, -(10**30), "x" * 10**5, [0] * 10**4, {"a": {"b": []}}]  # fmt: skip


class Tally:
    """What became of the files, and what the worst of them cost."""

    def __init__(self) -> None:
        self.equal = self.refused = self.memory = 0
        self.seconds = 0.0

    def judge(self, accepts: Callable[[], bool]) -> None:
        """Count one file; `accepts` tells, or raises what no user should see."""
        tracemalloc.reset_peak()
        before, began = tracemalloc.get_traced_memory()[0], time.process_time()
        if accepts():
            self.equal += 1
        else:
            self.refused += 1
        self.seconds = max(self.seconds, time.process_time() - began)
        peak = tracemalloc.get_traced_memory()[1] - before
        self.memory = max(self.memory, peak)


@pytest.fixture
def tally() -> Iterator[Tally]:
    """Count, with no more memory to be had than the limit."""
    if sys.platform != "linux":
        pytest.skip("needs Linux's limit on a process's memory")
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + 2 * MEMORY  # some for the tracing itself
    tracemalloc.start()
    resource.setrlimit(resource.RLIMIT_AS, (limit, old[1]))
    try:
        yield Tally()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)
        tracemalloc.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: making files is most of the work."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def finish(tally: Tally, what: str, record: Callable[[str, object], None]) -> None:
    record("fuzzed", (what, vars(tally)))
    assert tally.refused > MANY / 2 and tally.equal > MANY / 100
    assert tally.memory < MEMORY and tally.seconds < SECONDS


# -- checkpoints -----------------------------------------------------------------------


def nonsense(rng: Random, good: bytes) -> bytes:
    """Put nonsense into some field of the text about the run."""
    text = about(good)
    settings, counts = text["settings"], text["counts"]
    inside: Any = rng.choice([text, settings, counts])
    if inside is settings:
        names = ["model", "dataset", "dtype", "batch_size", "seed", "optimizer"]
    else:
        names = [name for name in inside if name != "loss"]
    old = inside[name := rng.choice(names)]
    inside[name] = rng.choice([x for x in NONSENSE if x != old])
    return retold(good, text)


def one_npy_header(rng: Random, good: bytes) -> bytes:
    """Flip bits in what one array says of itself; all checksums fit."""
    which = rng.randrange(len(members(good)))
    return reheaded(good, which, lambda header: flip(rng, header))


def made_up(rng: Random, good: bytes) -> bytes:
    """Take one of the table, and damage it here and there."""
    forged = FORGED[rng.choice(list(FORGED))][0](good)
    return rng.choice([forged, sealed(flip_headers(rng, forged))])


MUTATIONS: list[Callable[[Random, bytes], bytes]] = [
    flip,
    flip_headers,
    cut,
    swap,
    lambda rng, good: sealed(flip(rng, good)),
    lambda rng, good: sealed(flip_headers(rng, good)),
    lambda rng, good: sealed(cut(rng, good)),
    one_npy_header,
    nonsense,
    made_up,
]


def bombs(good: bytes) -> Iterator[bytes]:
    """Files that grow: by compression, by promises, by the number of small things."""
    parts = members(good)
    zeros = ("params/0.npy", npy(np.zeros(2**26, "<f4")))
    yield packed([parts[0], zeros, *parts[2:]], zipfile.ZIP_DEFLATED)
    yield packed([parts[0], *(("params/0.npy", b"") for _ in range(10**4))])
    empty = npy(np.zeros(0, "<f4"))
    yield packed([parts[0], *((f"params/{i}.npy", empty) for i in range(10**4))])
    for text in (b'{"":0}', b"[]", b"1e9", b'{"":{}}', b"[[[[[]]]]]"):
        yield retold(
            good, b"[" + (text + b",") * (2**20 // (len(text) + 1) - 9) + b"0]"
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_damaged_checkpoint_trains_on(
    seed: int, folder: Path, tally: Tally, record_property: Callable
) -> None:
    path, rng = folder / "run.npz", Random(seed)
    run(path)
    good = path.read_bytes()

    def ends(content: bytes) -> tuple[list, list]:
        path.write_bytes(content)
        history = run(path, resume=True, epochs=2)
        params = [as_array(p) for each in history.device_params for p in each]
        return history.losses, params

    losses, params = ends(good)

    def accepts(content: bytes) -> bool:
        try:
            came = ends(content)
        except (DataCorrupt, InvalidInput):
            assert path.read_bytes() == content
            return False
        assert came[0] == losses
        assert all(map(np.array_equal, came[1], params))
        return True

    for bomb in bombs(good):
        tally.judge(lambda bomb=bomb: accepts(bomb))
    for i in range(MANY):
        content = MUTATIONS[i % len(MUTATIONS)](rng, good)
        tally.judge(lambda: accepts(content))  # noqa: B023
    assert [p.name for p in folder.iterdir()] == ["run.npz"]
    finish(tally, "checkpoints", record_property)


# -- IDX -------------------------------------------------------------------------------

ZEROS = 2**24


def inflated(head: bytes, times: int, name: bytes = b"") -> bytes:
    """Compress `head` and so many times 16 MiB of zeros, without the time it takes."""
    squeeze = zlib.compressobj(9, wbits=-15)
    first = squeeze.compress(head) + squeeze.flush(zlib.Z_FULL_FLUSH)
    block = squeeze.compress(bytes(ZEROS)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    start = b"\x1f\x8b\x08" + (b"\x08" if name else b"\0") + bytes(6) + name
    return start + first + block * times + b"\3\0" + bytes(8)


def idx_bombs() -> Iterator[bytes]:
    """Gigabytes of zeros in a few megabytes, with all kinds of headers."""
    magic = bytes([0, 0, 8, 3])
    for shape in (
        [0, 0, 0],
        [6, 28, 28],
        [171_000, 28, 28],
        [2**32 - 1] * 3,
        [2**27, 1, 1],
    ):
        yield inflated(magic + np.array(shape, ">u4").tobytes(), 256)
    yield inflated(b"", 256)
    yield inflated(magic, 1, b"x" * 10**7 + b"\0")
    yield gzip.compress(magic + bytes(12)) + gzip.compress(b"") * 10**5
    yield gzip.compress(bytes(10)) * 10**4


def inner_header(rng: Random, good: bytes) -> bytes:
    """Flip bits of the IDX header and compress again; gzip's checksum fits."""
    return gzip.compress(flip(rng, gzip.decompress(good), range(16)))


def inner_cut(rng: Random, good: bytes) -> bytes:
    """Cut the numbers short, or add some."""
    content = gzip.decompress(good)
    more = rng.randbytes(rng.randrange(1, 40))
    return gzip.compress(rng.choice([content[: rng.randrange(len(content))],
                                     content + more]))  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_no_damaged_idx_file_is_read(
    seed: int, folder: Path, tally: Tally, record_property: Callable
) -> None:
    path, rng = folder / "images.gz", Random(seed)
    images = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    images[:, :8] = 0
    good = gzip.compress(idx(images), mtime=0)

    def accepts(content: bytes) -> bool:
        path.write_bytes(content)
        try:
            read = read_idx(path, 3, (28, 28))
        except DataCorrupt:
            return False
        assert np.array_equal(read, images)
        return True

    assert accepts(good)
    mutations = (flip, cut, inner_header, inner_cut,
                 lambda rng, good: flip(rng, good, range(10)))  # fmt: skip
    for bomb in idx_bombs():
        tally.judge(lambda bomb=bomb: accepts(bomb))
    for i in range(MANY):
        content = mutations[i % len(mutations)](rng, good)
        tally.judge(lambda: accepts(content))  # noqa: B023
    finish(tally, "IDX files", record_property)
