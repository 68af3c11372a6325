"""Dense layers, the steps that most networks here end with."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.protocol import Backend, Tensor


def dense(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute X W + b for params W (inputs, outputs), b and X (n, ...), flattened."""
    W, b = params
    return X.reshape((X.shape[0], -1)) @ W + b


def dense_relu(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute the dense layer and cut off what is negative."""
    return B.relu(dense(B, params, X))
