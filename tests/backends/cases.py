"""The operations of the contract as one table: a function and how to draw its inputs.

`run` gives the values and the gradients of all floating-point inputs, for an arbitrary
gradient of the result: with ones alone, softmax and layer_norm would have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], np.ndarray]


def normal(*shape: int) -> Draw:
    return lambda rng: rng.normal(size=shape)


def positive(*shape: int) -> Draw:
    return lambda rng: rng.uniform(0.5, 2.0, size=shape)


def apart(*shape: int) -> Draw:
    """Values with no two alike and none near zero: no tie, no kink, in any order."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        count = int(np.prod(shape, dtype=int))
        values = (rng.permutation(count) + 1.0) * rng.choice([-0.1, 0.1], size=count)
        return values.reshape(shape)

    return draw


def ids(*shape: int, below: int) -> Draw:
    return lambda rng: rng.integers(0, below, size=shape)


@dataclass(frozen=True)
class Case:
    name: str
    f: Callable[..., Any]  # (B, *tensors) -> tensor
    inputs: Sequence[Draw]

    def draw(self, dtype: str, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        values = [np.asarray(draw(rng)) for draw in self.inputs]
        return [v.astype(dtype) if v.dtype.kind == "f" else v for v in values]


def weights(out: np.ndarray) -> np.ndarray:
    return np.random.default_rng(7).normal(size=out.shape).astype(out.dtype)


def run(B: Any, case: Case, values: Sequence[np.ndarray], device: str = "cpu") -> list:
    """Return [result, gradient of each floating-point input] as NumPy arrays."""
    tensors = [B.array(v, device) for v in values]
    floating = [t for t, v in zip(tensors, values, strict=True) if v.dtype.kind == "f"]
    for t in floating:
        B.attach_grad(t)
    with B.record():
        out = case.f(B, *tensors)
    value = B.numpy(out)
    B.backward([out], [B.array(weights(value), device)])
    return [value, *(B.numpy(B.grad(t)) for t in floating)]


_s = np.float64(0.75)  # a NumPy number must not turn float32 into float64

CASES = [
    Case("add", lambda B, x, y: x + y, [normal(2, 3), normal(2, 3)]),
    Case("add_scalar", lambda B, x: x + 2.5, [normal(2, 3)]),
    Case("scalar_add", lambda B, x: 2 + x, [normal(2, 3)]),
    Case("subtract", lambda B, x, y: x - y, [normal(2, 3), normal(1, 3)]),
    Case("subtract_scalar", lambda B, x: x - 1.5, [normal(2, 3)]),
    Case("scalar_subtract", lambda B, x: 1 - x, [normal(2, 3)]),
    Case("multiply", lambda B, x, y: x * y, [normal(2, 3), normal(2, 3)]),
    Case("multiply_scalar", lambda B, x: x * 0.1, [normal(2, 3)]),
    Case("multiply_numpy_scalar", lambda B, x: x * _s, [normal(2, 3)]),
    Case("numpy_scalar_multiply", lambda B, x: _s * x, [normal(2, 3)]),
    Case("divide", lambda B, x, y: x / y, [normal(2, 3), positive(2, 3)]),
    Case("divide_scalar", lambda B, x: x / 3, [normal(2, 3)]),
    Case("scalar_divide", lambda B, x: 3 / x, [positive(2, 3)]),
    Case("negate", lambda B, x: -x, [apart(2, 3)]),
    Case("square", lambda B, x: x**2, [normal(2, 3)]),
    Case("root", lambda B, x: x**0.5, [positive(2, 3)]),
    Case("inverse_root", lambda B, x: x**-0.5, [positive(2, 3)]),
    Case("no_dimension", lambda B, x, y: (x * 3 - y / 3) ** 2, [normal(), normal()]),
    Case("matmul", lambda B, x, y: x @ y, [normal(2, 3), normal(3, 4)]),
    Case("matmul_batch", lambda B, x, y: x @ y, [normal(2, 3, 4), normal(2, 4, 5)]),
    Case("matmul_shared", lambda B, x, y: x @ y, [normal(2, 3, 4), normal(4, 5)]),
    Case("matmul_vector", lambda B, x, y: x @ y, [normal(2, 3), normal(3)]),
    Case("vector_matmul", lambda B, x, y: x @ y, [normal(3), normal(3, 2)]),
    Case("rows", lambda B, x: x[1:3], [normal(4, 2)]),
    Case("reshape", lambda B, x: x.reshape((3, -1)), [normal(2, 3, 2)]),
    Case("sum_all", lambda B, x: x.sum(), [normal(2, 3)]),
    Case("sum_keep", lambda B, x: B.sum(x, (0, 2), keepdims=True), [normal(2, 3, 4)]),
    Case("exp", lambda B, x: B.exp(x), [normal(3, 5)]),
    Case("log", lambda B, x: B.log(x), [positive(3, 5)]),
    Case(
        "log_sum_exp",  # the maximum cancels, so it needs no gradient
        lambda B, x: (
            B.log(B.sum(B.exp(x - B.max(x, -1, True)), -1)) + B.max(x, axis=-1)
        ),
        [normal(3, 5)],
    ),
    Case("transpose", lambda B, x: B.transpose(x, (2, 0, 1)), [normal(2, 3, 4)]),
    Case(
        "after_transpose",
        lambda B, x: B.transpose(x, (1, 0, 2)).reshape((3, 8)) * 2,
        [normal(2, 3, 4)],
    ),
    Case("concat", lambda B, x, y: B.concat([x, y, x]), [normal(2, 3), normal(1, 3)]),
    Case("relu", lambda B, x: B.relu(x), [apart(3, 5)]),
    Case("gelu", lambda B, x: B.gelu(x), [normal(3, 50)]),
    Case("softmax", lambda B, x: B.softmax(x), [normal(3, 5)]),
    Case("softmax_axis", lambda B, x: B.softmax(x, axis=1), [normal(2, 5, 3)]),
    Case("softmax_large", lambda B, x: B.softmax(x + 1000), [normal(3, 5)]),
    Case(
        "conv2d",
        lambda B, X, W, b: B.conv2d(X, W, b),
        [normal(2, 3, 7, 6), normal(4, 3, 3, 3), normal(4)],
    ),
    Case(
        "conv2d_padding",
        lambda B, X, W, b: B.conv2d(X, W, b, padding=2),
        [normal(2, 2, 5, 5), normal(3, 2, 3, 2), normal(3)],
    ),
    Case("avg_pool2d", lambda B, X: B.avg_pool2d(X, 2), [normal(2, 3, 4, 6)]),
    Case("max_pool2d", lambda B, X: B.max_pool2d(X, 2), [apart(2, 3, 4, 6)]),
    Case(
        "embedding",
        lambda B, i, W: B.embedding(i, W),
        [ids(3, 4, below=5), normal(5, 2)],  # 12 ids of 5: some rows come often
    ),
    Case(
        "layer_norm",
        lambda B, x, g, b: B.layer_norm(x, g, b),
        [normal(2, 3, 8), normal(8), normal(8)],
    ),
    Case(
        "layer_norm_eps",
        lambda B, x, g, b: B.layer_norm(x, g, b, eps=2**-10),
        [normal(3, 4), normal(4), normal(4)],
    ),
    Case(
        "cross_entropy",
        lambda B, x, y: B.cross_entropy(x, y),
        [normal(6, 4), ids(6, below=4)],
    ),
    Case(
        "cross_entropy_large",
        lambda B, x, y: B.cross_entropy(x * 1000, y),
        [normal(6, 4), ids(6, below=4)],
    ),
]
