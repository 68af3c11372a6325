"""All ways to split at once, on a mesh: the weights of one device again.

The same runs as in `strategies.py`, on as many ranks as the mesh has.
"""

from __future__ import annotations

from math import prod
from typing import Any

from . import strategies
from .strategies import KVSTORE, ONE, Row, model_of, on_ranks, one_device, row

TITLE = "Meshes compared with one device"
SOURCES = (
    "d2lmulti",
    "tests/processes/asked.py",
    "tests/processes/asked_mesh.py",
    "tests/processes/asked_tokens.py",
    "tests/processes/test_mxnet_kvstore.py",
    "tools/evidence/mesh.py",
    "tools/evidence/strategies.py",
)
BETWEEN = 4  # ranks at most between processes


def rows(quick: bool, step: Any) -> list[Row]:
    """Try every mesh on every engine and backend."""
    found: list[Row] = []
    meshes = {
        way: prod(options["mesh"].values())
        for way, options in strategies.ways().items()
        if options.get("strategy") == "mesh"
    }
    if quick:
        meshes = dict(list(meshes.items())[:1])
    for engine, (title, backends) in strategies.ENGINES.items():
        if engine == KVSTORE or (quick and engine != ONE):
            continue
        for backend in ("numpy",) if quick else backends:
            step(f"{title}, {backend}")
            fits = {w: n for w, n in meshes.items() if engine == ONE or n <= BETWEEN}
            for n in sorted(set(fits.values())):
                names = [way for way, ranks in fits.items() if ranks == n]
                want = {way: one_device(model_of(way), backend) for way in names}
                each = {n: on_ranks(engine, backend, n, want)}
                found += [row(engine, backend, way, each) for way in names]
    return found


wrong = strategies.wrong
