"""Which GPUs a backend counts and uses, with the framework's answers made up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from backends.compare import start

from d2lmulti import (
    devices,
    get_model,
    get_params,
    shard_params,
    split_params,
    train_batch,
    train_layers,
    train_shards,
)
from d2lmulti.backends.protocol import Backend
from d2lmulti.errors import DeviceUnavailable, InvalidInput
from d2lmulti.models.transformer import make_transformer
from d2lmulti.parallel.pipeline import cut_stages, place_params, train_stages

IDS = make_transformer("tiny", vocabulary=5, context=4, width=4, heads=2, blocks=1)


# -- Paddle computes on its current GPU ------------------------------------------------


@pytest.fixture
def paddle(load: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Paddle where there are two GPUs, of which it tells its current one."""
    B = load("paddle")
    current: list[str] = []
    monkeypatch.setattr(B.paddle.device.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(B.paddle, "set_device", current.append)
    monkeypatch.setattr(B.paddle, "CUDAPlace", _Place)
    monkeypatch.setattr(B, "_used", [])
    monkeypatch.delenv("FLAGS_selected_gpus", raising=False)
    B.current = current
    yield B
    del B.current


class _Place:
    def __init__(self, index: int) -> None:
        self.index = index


def test_a_process_of_paddle_has_one_gpu(paddle: Any) -> None:
    assert paddle.gpu_count() == 1
    assert [str(device) for device in devices(2, "paddle")] == ["sim:0", "sim:1"]
    assert [paddle.native(f"sim:{i}").index for i in range(4)] == [0] * 4
    assert paddle.current == ["gpu:0"]
    with pytest.raises(DeviceUnavailable, match="one GPU per process"):
        paddle.native("gpu:1")


@pytest.mark.parametrize(("chosen", "gpu"), [(None, 1), ("3", 3)])
def test_a_rank_of_paddle_computes_on_its_own_gpu(
    paddle: Any, chosen: str | None, gpu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paddle.paddle.device.cuda, "device_count", lambda: 4)
    if chosen:
        monkeypatch.setitem(os.environ, "FLAGS_selected_gpus", chosen)
    assert paddle.own_gpu(1, 2) == gpu
    assert paddle.own_gpu(1, 5) is None
    assert paddle.native(f"gpu:{gpu}").index == paddle.native("sim:7").index == gpu
    assert paddle.current == [f"gpu:{gpu}"]


# -- MXNet cannot even count -----------------------------------------------------------


def test_mxnet_counts_no_gpu_where_it_cannot_count(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    B = load("mxnet")

    def fail() -> int:
        raise B.mx.MXNetError("CUDA: driver version is insufficient")

    monkeypatch.setattr(B.mx.context, "num_gpus", fail)
    B._gpus.cache_clear()
    try:
        assert B.gpu_count() == 0
        assert any("insufficient" in line for line in B.describe_gpus())
    finally:
        B._gpus.cache_clear()


# -- labels and ids are checked before they reach a GPU --------------------------------


def steps(B: Backend, model: Any, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """One step in each way to split the work; under the pose, on GPUs."""
    places = devices(2, B.name)
    params = start(B, model)
    Xs, ys, lr = B.array(X), B.array(y), 0.1
    stages = cut_stages(model, 2)
    return {
        "data": lambda: train_batch(
            Xs, ys, [get_params(params, p) for p in places], places, lr, model=model
        ),
        "shards": lambda: train_shards(
            Xs, ys, shard_params(params, places, model, 1), places, lr
        ),
        "stages": lambda: train_stages(
            Xs, ys, place_params(params, stages, places), places, lr,
            stages=stages, micro_batches=2,
        ),
        "layers": lambda: train_layers(
            Xs, ys, split_params(params, places, model.name), places, lr,
            model=model.name,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("way", ["data", "shards", "stages", "layers"])
def test_wrong_labels_and_tokens_are_refused_however_the_work_is_split(
    B: Backend, way: str
) -> None:
    labels = steps(B, get_model("mlp"), np.ones((4, 784)), np.array([0, 1, 2, 10]))
    with pytest.raises(InvalidInput, match="ids from 0 to 9"):
        labels[way]()
    assert B.numpy(B.array([1.0], devices(1, B.name)[0]) * 2).tolist() == [2]
    ids = np.zeros((4, 4), int)
    tokens = steps(B, IDS, ids + 5, ids)
    if way != "layers":  # `IDS` has no split form by its name
        with pytest.raises(InvalidInput, match="ids from 0 to 4"):
            tokens[way]()
