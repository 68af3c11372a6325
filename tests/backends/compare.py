"""How equal two backends must be: the largest difference, over the largest value.

Bits are compared by digest: of long values that differ pytest would print the whole
difference under CI, which for a megabyte takes it hours.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

Result = tuple[list[float], list[np.ndarray], list[np.ndarray]]
Nested = list[list[np.ndarray]]

if TYPE_CHECKING:  # processes that compare digests read this file too, and quickly
    from d2lmulti import History
    from d2lmulti.backends.protocol import Backend
    from d2lmulti.models.networks import Model

TOLERANCE = {"float64": 1e-10, "float32": 1e-4}


def assert_close(
    got: np.ndarray, want: np.ndarray, what: str = "value", least: float = 1e-30
) -> None:
    """Compare by the largest value, or by `least` where summands nearly cancel."""
    assert got.dtype == want.dtype, f"{what}: expected {want.dtype}, got {got.dtype}"
    assert got.shape == want.shape, f"{what}: expected {want.shape}, got {got.shape}"
    if want.size:
        difference = np.abs(got - want).max() / max(np.abs(want).max(), least)
        assert difference <= TOLERANCE[want.dtype.name], f"{what}: off by {difference}"


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert digest(got) == digest(want), f"{np.sum(got != want)} elements differ"


def digest(x: np.ndarray) -> str:
    return hashlib.sha256(x.tobytes()).hexdigest()


def assert_near(
    got: list[np.ndarray], want: list[np.ndarray], tolerance: float = 1e-12
) -> None:
    """Compare parameter by parameter, each by its largest value."""
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


def assert_replicas(
    replicas: list[list[np.ndarray]], want: list[np.ndarray], tolerance: float = 1e-12
) -> None:
    """Compare every replica, and its bits with those of the first."""
    for replica in replicas:
        assert_near(replica, want, tolerance)
        for got, first in zip(replica, replicas[0], strict=True):
            assert_same_bits(got, first)


def assert_all_same_bits(got: Nested, want: Nested) -> None:
    """Compare lists of lists of arrays."""
    for some, others in zip(got, want, strict=True):
        for a, b in zip(some, others, strict=True):
            assert_same_bits(a, b)


def arrays(B: Backend, tensors: Sequence[Sequence[Any]]) -> Nested:
    """Return lists of tensors, such as the parameters of every replica, as arrays."""
    return [[B.numpy(x) for x in some] for some in tensors]


def weights(B: Backend, history: History) -> Nested:
    """Return the parameters of every replica that a run has left."""
    return arrays(B, history.device_params)


def start(B: Backend, model: Model, dtype: str = "float64", seed: int = 0) -> list:
    """Return the first parameters of a model as tensors."""
    params = model.initial(np.random.default_rng(seed))
    return [B.array(p.astype(dtype)) for p in params]


def train_alone(
    B: Backend, model: Model, initial: Sequence[np.ndarray], batches: Any, lr: float,
    optimizer: Any,
) -> Result:  # fmt: skip
    """Train on one device with none of the library's ways to split.

    Returns the loss of each batch, and the weights and gradients after the last.
    """
    params, losses = [B.array(p) for p in initial], []
    for p in params:
        B.attach_grad(p)
    state = optimizer.init(params)
    for X, y in batches:
        for p in params:
            B.clear_grad_(p)
        with B.record():
            logits = model.forward(B, params, B.array(X))
            loss = B.cross_entropy(logits, B.array(y.reshape(-1))).sum()
        B.backward([loss])
        optimizer.step_(params, state, lr, n=y.size)
        losses.append(float(B.numpy(loss)))
    weights = [B.numpy(p) for p in params]
    return losses, weights, [B.numpy(B.grad(p)) for p in params]


def on_real_gpu(B: Backend) -> bool:
    """Do tensors of this backend lie on a GPU, and not on a CPU that poses as one?"""
    return B.gpu_count() > 0 and "D2LMULTI_POSED" not in os.environ
