"""The weights in a checkpoint of each script of `examples/`, as NumPy arrays.

`READ[script](path)` gives them in the order of the layers, which the two scripts of a
framework have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

Weights = list[np.ndarray]


def pytorch(path: Path) -> Weights:
    import torch

    saved = torch.load(path, weights_only=True)
    return [p.numpy() for p in saved["model"].values()]


def pytorch_distributed(path: Path) -> Weights:
    """All ranks' parts of the last epoch, put together."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    whole = path / "whole.pt"
    dcp_to_torch_save(last_epoch(path), whole)
    return pytorch(whole)


def paddle(path: Path) -> Weights:
    import paddle

    saved = paddle.load(str(path))
    return [p.numpy() for p in saved["model"].values()]


def mxnet(path: Path) -> Weights:
    from mxnet import npx

    saved = npx.load(str(last_epoch(path) / "model"))
    return [p.asnumpy() for p in saved.values()]


def tensorflow(path: Path) -> Weights:
    with np.load(path) as saved:
        *values, _ = saved.values()  # the last is the number of epochs
    weights = (len(values) - 2) // 2  # then two numbers of SGD, then the velocities
    return values[:weights]


def last_epoch(path: Path) -> Path:
    return max(path.glob("epoch.*"), key=lambda folder: int(folder.suffix[1:]))


READ: dict[str, Callable[[Path], Weights]] = {
    "pytorch_single": pytorch,
    "pytorch_ddp": pytorch,
    "pytorch_elastic": pytorch,
    "pytorch_fsdp": pytorch_distributed,
    "paddle_single": paddle,
    "paddle_parallel": paddle,
    "mxnet_single": mxnet,
    "mxnet_horovod": mxnet,
    "tensorflow_single": tensorflow,
    "tensorflow_workers": tensorflow,
}
