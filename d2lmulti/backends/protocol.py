"""The backend contract: what a framework must be able to do.

A backend is a *module of plain functions*. `pytorch.py`, `mxnet.py`, `paddle.py` and
`numpy.py` hold the functions below in this order, so that any two can be laid side by
side. There is no verb where the frameworks already agree: `+ - * / ** @`, `x[a:b]`
along the first dimension, `x.reshape(shape)`, `x.shape`, `x.sum()`. Chapter: *setup*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

Tensor = Any  # a tensor of the backend's own kind
AnyDevice = Any  # a Device, its name ("gpu:0", "sim:1", "cpu") or the framework's own
Context = AbstractContextManager[Any]
Tensors = Sequence[Tensor]
Values = np.ndarray | Sequence[Any]
Shape = Sequence[int]
Axes = int | tuple[int, ...]


class Backend(Protocol):
    """The functions that every backend module provides, with their meaning."""

    name: str

    # -- devices ----------------------------------------------------------------

    def gpu_count(self) -> int:
        """Count the GPUs that one process can use; for Paddle, at most one."""

    def native(self, device: AnyDevice) -> Any:
        """Turn a device or its name into the framework's own device object.

        `sim:i` lives on GPU `i mod gpu_count()`, or on the CPU without GPUs. Raises
        `DeviceUnavailable` for a GPU that is not there, or, with Paddle, for a second
        one in a process; `InvalidInput` for no device.
        """

    def device_of(self, x: Tensor) -> str:
        """Name the physical device that holds `x`: `cpu` or `gpu:<i>`."""

    def synchronize(self) -> None:
        """Wait until every device has finished; call it before you stop a timer."""

    # -- storage ----------------------------------------------------------------

    def array(self, value: Values, device: AnyDevice = "cpu") -> Tensor:
        """Make a tensor from NumPy values: same dtype, same shape, own storage.

        Raises `InvalidInput` for ragged lists, strings, objects, other dtypes.
        """

    def numpy(self, x: Tensor) -> np.ndarray:
        """Copy to a NumPy array with its own storage; bfloat16 becomes float32."""

    def zeros(self, shape: Shape, dtype: str, device: AnyDevice = "cpu") -> Tensor:
        """Make a tensor of zeros; `dtype` is a NumPy name such as `float32`."""

    def dtype_of(self, x: Tensor) -> str:
        """Name the dtype as NumPy does: `float32`, `int64`; and `bfloat16`."""

    def copy_to(self, x: Tensor, device: AnyDevice) -> Tensor:
        """Copy `x` to `device` into *new* storage, also when it is there already.

        The copy lies row by row in memory and outside any recorded graph.
        """

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """Copy to another dtype, rounded to the nearest, ties to even; in no graph."""

    def read(self, x: Tensor, first: int, last: int) -> Tensor:
        """Read elements first..last-1 of the flattened `x`, as a 1-d tensor.

        It may share storage with `x` (a view) or not (a copy), so use it before `x`
        changes and never write to it. An empty part is legal. Raises `InvalidInput`
        unless 0 <= first <= last <= the number of elements.
        """

    def write_(
        self, x: Tensor, first: int, last: int, y: Tensor, add: bool = False
    ) -> None:
        """Write (or add) the `last - first` values of `y` into the flattened `x`.

        Works in place, outside any recorded graph, also on `grad(p)` and on parameters;
        `y` may lie on another device and have any shape. An empty part is legal. Never
        write to a tensor between the forward pass that used it and its backward pass.
        Raises `InvalidInput` for a part outside `x`, for another number of values, for
        another dtype, and for a strided view such as a transpose: flat it is a copy.
        """

    def maximum_(self, x: Tensor, first: int, last: int, y: Tensor) -> None:
        """As `write_`, but write the larger of both values; NaN counts as larger."""

    def memory(self, x: Tensor) -> np.ndarray | None:
        """Return a flat view of the memory of `x`, or None if NumPy cannot reach it.

        It cannot on a GPU and in a strided view. Waits until pending work is done; use
        the view before the next operation. bfloat16 is two bytes (see `common.py`).
        """

    # -- autograd, in D2L's words -------------------------------------------------

    def attach_grad(self, x: Tensor, add: bool = True) -> None:
        """Make the leaf `x` collect a gradient, which starts at zero (again).

        Every backward pass adds to it. With `add=False` it does what it does in the
        framework's own loops: MXNet's pass overwrites it, the others' add all the same.
        Raises `InvalidInput` for a result inside a graph; MXNet, which cannot tell,
        cuts the graph there. Use `attach_grad(detach(x))` in generic code.
        """

    def collects_grad(self, x: Tensor) -> bool:
        """Return whether backward passes give `x` a gradient: not if it is frozen."""

    def accumulating(self, xs: Tensors) -> list[Tensor]:
        """Return leaves with the storage and gradients of xs, to which passes add."""

    def record(self) -> Context:
        """Record the operations inside (on some frameworks outside too)."""

    def pause(self) -> Context:
        """Record nothing inside (evaluation, updates)."""

    def backward(self, ys: Tensors, dys: Tensors | None = None) -> None:
        """Add d(sum of ys)/dx to the gradient of every leaf x that `ys` depend on.

        `dys`: one gradient for each of `ys`; None means ones. This uses the graph up:
        tensors that share one go backward in one call. Raises `InvalidInput` for a y
        that no recorded operation made, and for `dys` of other shapes, dtypes, number.
        """

    def grad_of(
        self,
        ys: Tensors,
        xs: Tensors,
        dys: Tensors | None = None,
        keep_graph: bool = False,
    ) -> list[Tensor]:
        """Return d(sum of ys)/dx for these leaves xs alone, as new tensors.

        As `backward`, but no leaf's own gradient changes, and with `keep_graph` the
        graph serves again: first for inputs, later for weights. Raises `InvalidInput`
        as `backward`, and for an x without `attach_grad` or that no y depends on.
        """

    def on_grad_ready(self, params: Tensors, ready: Callable[[int], None]) -> Context:
        """Inside, call `ready(i)` when a backward pass has finished grad(params[i]).

        With hooks, that is while the pass works on others. What no pass reached is
        reported at the end of the block; what several reach, perhaps by each.
        """

    def grad(self, x: Tensor) -> Tensor:
        """Return the gradient of `x`, not a copy; `InvalidInput` if it has none."""

    def move_grad(self, x: Tensor, flat: Tensor, first: int) -> bool:
        """Let the gradient of `x` live in the vector `flat`, from element `first` on.

        Its values are copied there; without a gradient, `x` takes those that are there.
        False, and nothing happens, where gradients have storage of their own.
        """

    def clear_grad_(self, x: Tensor) -> None:
        """Set the gradient of `x` to zero; until then gradients add up."""

    def detach(self, x: Tensor) -> Tensor:
        """Return the values of `x` outside the graph; may share storage with `x`."""

    # -- operations of the models ---------------------------------------------------

    def sum(self, x: Tensor, axis: Axes, keepdims: bool = False) -> Tensor:
        """Sum over one or several dimensions."""

    def max(self, x: Tensor, axis: Axes, keepdims: bool = False) -> Tensor:
        """Largest value over one or several dimensions, without a gradient."""

    def exp(self, x: Tensor) -> Tensor:
        """e to the power x, elementwise."""

    def log(self, x: Tensor) -> Tensor:
        """Natural logarithm, elementwise."""

    def sqrt(self, x: Tensor) -> Tensor:
        """Square root, correctly rounded, for optimizers; without a gradient."""

    def transpose(self, x: Tensor, axes: Shape) -> Tensor:
        """Permute the dimensions: dimension i of the result is `axes[i]` of `x`."""

    def concat(self, xs: Tensors, axis: int = 0) -> Tensor:
        """Join tensors along one dimension."""

    def argmax(self, x: Tensor, axis: int = -1) -> Tensor:
        """Find the index of the largest value along one dimension."""

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0), elementwise; its gradient at 0 is 0."""

    def gelu(self, x: Tensor) -> Tensor:
        """x * Phi(x) with the exact normal distribution function."""

    def softmax(self, x: Tensor, axis: int = -1) -> Tensor:
        """exp(x) / sum exp(x) along one dimension."""

    def conv2d(
        self, X: Tensor, W: Tensor, b: Tensor | None, padding: int = 0
    ) -> Tensor:
        """Cross-correlate with stride 1.

        X (batch, c_in, h, w), W (c_out, c_in, kh, kw), b (c_out,) or None give
        (batch, c_out, h + 2 padding - kh + 1, w + 2 padding - kw + 1).
        """

    def avg_pool2d(self, X: Tensor, size: int) -> Tensor:
        """Average disjoint windows of size x size, at most the image; drop the rest."""

    def max_pool2d(self, X: Tensor, size: int) -> Tensor:
        """As `avg_pool2d`, with the maximum; on a tie any may get the gradient."""

    def embedding(self, ids: Tensor, W: Tensor) -> Tensor:
        """Look up rows: ids (...) of int64 and W (vocabulary, d) give (..., d).

        Keep ids in 0..vocabulary-1: some frameworks read beyond the table.
        """

    def layer_norm(
        self, x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5
    ) -> Tensor:
        """Normalize the last dimension (biased variance, eps <= 1e-3), then scale."""

    def cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Loss of every example: logits (n, classes), y (n,) of int64 give (n,).

        Keep y in 0..classes-1, as with `embedding`.
        """
