"""However the work is split, and whatever carries the bytes: the weights of one device.

Rows: engine, backend, the way to split, the world sizes tried, and the largest
difference of any weight on any device from one device's, over the largest weight of its
tensor. What an engine cannot do is tried too, and its refusal kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
from processes.asked import MIXTURE, TEXT, UNEVEN, data

import d2lmulti
from d2lmulti.backends import backend_names, get_backend
from d2lmulti.comm.collectives import usual_algorithm
from d2lmulti.comm.group import local_group
from d2lmulti.errors import InvalidInput
from d2lmulti.models import get_model
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.schedules import SCHEDULES
from d2lmulti.processes.launcher import launch, launch_kvstore
from d2lmulti.processes.process_group import started
from d2lmulti.training.strategies import STRATEGIES

OWN = {model.name: model for model in (UNEVEN, MIXTURE)}
LIMIT = {"float64": 1e-12, "float32": 1e-5}
SERVER, KVSTORE, ONE = "parameter server, sync", "kvstore", "one process"
Row = dict[str, Any]
Weights = list[np.ndarray]

# Engine -> its name on the page, and the backends whose tensors it carries.
ENGINES: dict[str, tuple[str, tuple[str, ...]]] = {
    ONE: ("simulated devices in one process", backend_names()),
    "shared_memory": ("processes over shared memory", backend_names()),
    "torch": ("`torch.distributed`", ("torch",)),
    "paddle": ("`paddle.distributed`", ("paddle",)),
    "horovod": ("Horovod", ("torch", "mxnet")),
    KVSTORE: ("MXNet's `dist_sync` kvstore", ("mxnet",)),
}


def ways() -> dict[str, dict[str, Any]]:
    """Give every way to split that the library has: name -> arguments of `train`."""
    found: dict[str, dict[str, Any]] = {}
    for name in (*ALLREDUCE, "native"):
        found[f"data, {name}"] = {"model": "lenet", "algorithm": name}
    for name in ("ring", "native"):
        options = {"model": "mlp", "algorithm": name, "bucket_bytes": 50_000}
        found[f"data, {name}, in buckets"] = options
    found["tensor"] = {"strategy": "tensor", "model": "mlp"}
    for name in SCHEDULES:
        options = {"strategy": "pipeline", "model": "deep_mlp", "schedule": name}
        found[f"pipeline, {name}"] = options
    for zero in (1, 2, 3):
        options = {"strategy": "sharded", "model": UNEVEN, "zero": zero}
        found[f"sharded, ZeRO {zero}"] = options
    for name, axes, more in MESHES:
        found[f"mesh, {name}"] = {
            "strategy": "mesh", "model": "deep_mlp", "mesh": axes,
            "micro_batches": 3, **more,
        }  # fmt: skip
    split = {options.get("strategy", "data") for options in found.values()}
    if missing := set(STRATEGIES) - split:
        raise NotImplementedError(f"no way to split here uses {sorted(missing)}")
    return found | {SERVER: {"model": "mlp"}}


AT_ONCE = {"data": 2, "tensor": 2, "pipeline": 2}
OF_TOKENS = {"model": MIXTURE, "dataset": TEXT, "micro_batches": 2}
BETWEEN = 4  # ranks at most of a mesh between processes
MESHES: list[tuple[str, dict[str, int], dict[str, Any]]] = [
    ("data × tensor", {"data": 2, "tensor": 2}, {"model": "mlp"}),
    ("data × pipeline", {"data": 2, "pipeline": 2}, {}),
    ("data × pipeline, ZeRO 1", {"data": 2, "pipeline": 2}, {"zero": 1}),
    ("tensor × pipeline", {"tensor": 2, "pipeline": 2}, {}),
    ("data × tensor × pipeline, ZeRO 1", AT_ONCE, {"zero": 1}),
    ("sequence × expert", {"sequence": 2, "expert": 2}, OF_TOKENS),
    (
        "data × sequence × expert",
        {"data": 2, "sequence": 2, "expert": 2},
        OF_TOKENS | {"micro_batches": 1},
    ),
]
IN_ONE_PROCESS = (
    "the server of the chapter lives in one process; between processes MXNet's is the "
    "parameter server"
)


def examples() -> Any:
    """Return the tests' noise, with at least one test example for each of 8 devices."""
    noise = data()
    return replace(noise, test_X=noise.train_X, test_y=noise.train_y)


def trained(way: str, n: int, backend: str) -> list[Weights]:
    """Take the steps on n devices; give the weights of all that this process holds."""
    B, options = get_backend(backend), {"dataset": examples(), **ways()[way]}
    settings = {"dtype": "float64", "backend": backend, "epochs": 4}
    if way == SERVER and started() is not None:
        raise InvalidInput(IN_ONE_PROCESS)
    if way == SERVER:
        on = d2lmulti.train_on_servers(n, 12, 0.05, momentum=0.9, **options, **settings)
        return [[B.numpy(p) for p in on.params]]
    if n > 1 and options.get("strategy") == "tensor":
        options["algorithm"] = usual_algorithm(started() or local_group(n))
    if options.get("schedule") == "interleaved":
        options["stages"] = 2 * n
    history = d2lmulti.train(n, 12, 0.05, **options, **settings)
    return [[B.numpy(p) for p in params] for params in history.device_params]


@cache
def one_device(model: str, backend: str) -> Weights:
    """Take the same steps on one device."""
    B, made = get_backend(backend), OWN.get(model) or get_model(model)
    history = d2lmulti.train(
        1, 12, 0.05, epochs=4, dtype="float64", backend=backend, model=made,
        dataset=TEXT if made is MIXTURE else examples(),
    )  # fmt: skip
    weights = [B.numpy(p) for p in history.device_params[0]]
    start = made.initial(np.random.default_rng(0))
    moved = [np.abs(w - p).max() for w, p in zip(weights, start, strict=True)]
    if min(moved) < 1e-4:
        raise RuntimeError(f"{model} on {backend} learns nothing: equal means nothing")
    return weights


def model_of(way: str) -> str:
    """Name the model of a way to split."""
    model = ways()[way]["model"]
    return model if isinstance(model, str) else model.name


def difference(got: Weights, want: Weights) -> float:
    """Give the largest difference over the largest weight, of all tensors."""
    return max(
        float(np.abs(a - b).max() / np.abs(b).max())
        for a, b in zip(got, want, strict=True)
    )


def compared(n: int, backend: str, want: dict[str, Weights]) -> dict[str, float | str]:
    """Train in every way on n ranks: the largest difference, or why it is refused."""
    found: dict[str, float | str] = {}
    for way in want:
        try:
            replicas = trained(way, n, backend)
        except InvalidInput as error:
            found[way] = str(error)
        else:
            found[way] = max(difference(mine, want[way]) for mine in replicas)
    return found


def strategies(step: Any, names: Sequence[str] = ()) -> list[Row]:
    """Try every way but meshes, or these ways, on every engine and backend."""
    found: list[Row] = []
    names = names or [way for way, o in ways().items() if "mesh" not in o]
    for engine, (title, backends) in ENGINES.items():
        if engine == KVSTORE:
            step(title)
            found += on_kvstore()
            continue
        for backend in backends:
            step(f"{title}, {backend}")
            sizes = (2, 3, 4) if engine == ONE else (2, 3)
            want = {way: one_device(model_of(way), backend) for way in names}
            each = {n: on_ranks(engine, backend, n, want) for n in sizes}
            found += [row(engine, backend, way, each) for way in names]
    return found


def meshes(step: Any) -> list[Row]:
    """Try every mesh on every engine and backend, on as many ranks as it has."""
    found: list[Row] = []
    sizes = {w: prod(o["mesh"].values()) for w, o in ways().items() if "mesh" in o}
    for engine, (title, backends) in ENGINES.items():
        if engine == KVSTORE:
            continue
        for backend in backends:
            step(f"meshes, {title}, {backend}")
            fits = {w: n for w, n in sizes.items() if engine == ONE or n <= BETWEEN}
            for n in sorted(set(fits.values())):
                names = [way for way, ranks in fits.items() if ranks == n]
                want = {way: one_device(model_of(way), backend) for way in names}
                each = {n: on_ranks(engine, backend, n, want)}
                found += [row(engine, backend, way, each) for way in names]
    return found


def on_ranks(
    engine: str, backend: str, n: int, want: dict[str, Weights]
) -> dict[str, float | str]:
    """Ask the ranks of an engine; of their differences the largest counts."""
    if engine == ONE:
        return compared(n, backend, want)
    run = launch(compared, n, n, backend, want, engine=engine, backend=backend)
    # Refusals are alike on all ranks; else max() of a text and a number ends the run.
    return {way: max(found[way] for found in run.values) for way in want}


def row(engine: str, backend: str, way: str, each: dict[int, dict]) -> Row:
    """Sum up what the world sizes gave."""
    outcomes = {n: found[way] for n, found in each.items()}
    good = {n: x for n, x in outcomes.items() if not isinstance(x, str)}
    refused = {n: x for n, x in outcomes.items() if isinstance(x, str)}
    return {
        "engine": engine, "backend": backend, "way": way, "dtype": "float64",
        "ranks": sorted(good), "difference": max(good.values(), default=None),
        "weights": sum(w.size for w in one_device(model_of(way), backend)),
        "refused": {str(n): text for n, text in refused.items()},
    }  # fmt: skip


def on_kvstore() -> list[Row]:
    """Run the test's workers on MXNet's own servers, which hold float32 alone."""
    from processes.test_mxnet_kvstore import WORKER, in_process

    worst, alone = 0.0, in_process(1)
    for servers in (1, 2):
        outputs = launch_kvstore(WORKER, servers=servers, arguments=["dist_sync", "8"])
        for _, _, weights, _ in map(json.loads, outputs):
            got = [np.float32(w) for w in weights]
            worst = max(worst, difference(got, alone))
    return [{
        "engine": KVSTORE, "backend": "mxnet", "way": SERVER, "dtype": "float32",
        "ranks": [2], "difference": worst, "refused": {},
        "weights": sum(w.size for w in alone),
    }]  # fmt: skip


def differs(row: Row) -> bool:
    """Tell whether a row differs by more than rounding; a NaN does."""
    return bool(row["ranks"]) and not row["difference"] <= LIMIT[row["dtype"]]
