"""The backend contract: the functions that every framework must have.

A backend is a *module of plain functions*. `pytorch.py`, `mxnet.py`, `paddle.py` and
`numpy.py` have the functions below in this order, so that any two can be compared side
by side. There is no function where the frameworks already agree: `+ - * / ** @`,
`x[a:b]` along the first dimension, `x.reshape(shape)`, `x.shape`, `x.sum()`. Chapter:
*setup*.
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
    """Some forty functions; every backend module satisfies this protocol."""

    name: str

    # -- devices ----------------------------------------------------------------

    def gpu_count(self) -> int:
        """Return the number of GPUs that one process can use (Paddle: at most one)."""

    def native(self, device: AnyDevice) -> Any:
        """Return the framework's own object for a device or its name.

        `sim:i` is on GPU `i mod gpu_count()`, or on the CPU without GPUs. Raises
        `DeviceUnavailable` for a GPU that is not there, or, with Paddle, for a second
        one in a process; `InvalidInput` for no device.
        """

    def device_of(self, x: Tensor) -> str:
        """Return the name of the physical device of `x`: `cpu` or `gpu:<i>`."""

    def synchronize(self) -> None:
        """Wait until every device has finished, as each timing must at its end."""

    # -- storage ----------------------------------------------------------------

    def array(self, value: Values, device: AnyDevice = "cpu") -> Tensor:
        """Make a tensor from NumPy values: same dtype, same shape, own storage.

        Raises `InvalidInput` for ragged lists, strings, objects, and unknown dtypes.
        """

    def numpy(self, x: Tensor) -> np.ndarray:
        """Copy to a NumPy array with its own storage; bfloat16 becomes float32."""

    def zeros(self, shape: Shape, dtype: str, device: AnyDevice = "cpu") -> Tensor:
        """Make a tensor of zeros; `dtype` is a NumPy name such as `float32`."""

    def dtype_of(self, x: Tensor) -> str:
        """Return the dtype's NumPy name, such as `float32`, `int64`; or `bfloat16`."""

    def copy_to(self, x: Tensor, device: AnyDevice) -> Tensor:
        """Copy `x` to `device` into *new* storage, also when it is there already.

        The copy is contiguous and outside any recorded graph.
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
        `y` may be on another device and have any shape. An empty part is legal. Do not
        write to a tensor between the forward pass that used it and its backward pass.
        Raises `InvalidInput` for a part outside `x`, for another number of values, for
        another dtype, and for a strided view, whose flattened form is a copy.
        """

    def maximum_(self, x: Tensor, first: int, last: int, y: Tensor) -> None:
        """Write the larger of both values, as `write_` does; NaN wins."""

    def memory(self, x: Tensor) -> np.ndarray | None:
        """Return a flat view of the memory of `x`, or None if NumPy cannot access it.

        It cannot on a GPU and in a strided view. Waits until pending work is done; use
        the view before the next operation. bfloat16 is two bytes (see `common.py`).
        """

    # -- autograd, in D2L's words -------------------------------------------------

    def attach_grad(self, x: Tensor, add: bool = True) -> None:
        """Attach a gradient of zeros to the leaf `x`.

        Every backward pass adds to it. With `add=False` it behaves as in the
        framework's own loops: MXNet's pass overwrites it, the others still add. Raises
        `InvalidInput` for a result inside a graph; MXNet, which cannot detect that,
        cuts the graph there. Use `attach_grad(detach(x))` in generic code.
        """

    def collects_grad(self, x: Tensor) -> bool:
        """Return whether backward passes give `x` a gradient: not if it is frozen."""

    def accumulating(self, xs: Tensors) -> list[Tensor]:
        """Return leaves with the storage and gradients of xs, to which passes add."""

    def record(self) -> Context:
        """Record the operations inside (on some frameworks outside too)."""

    def pause(self) -> Context:
        """Record no operations inside (evaluation, updates)."""

    def backward(self, ys: Tensors, dys: Tensors | None = None) -> None:
        """Add d(sum of ys)/dx to the gradient of every leaf x that `ys` depend on.

        `dys`: one gradient for each of `ys`; None means ones. This frees the graph, so
        tensors that share one must be in the same call. Raises `InvalidInput` for a y
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

        No leaf's own gradient changes, and with `keep_graph` the graph can be used
        again: first for inputs, later for weights. Raises `InvalidInput` as `backward`
        does, and for an x without `attach_grad` or that no y depends on.
        """

    def on_grad_ready(self, params: Tensors, ready: Callable[[int], None]) -> Context:
        """Call `ready(i)` when a backward pass inside has finished grad(params[i]).

        With hooks, other gradients are still being computed then. Parameters without a
        gradient are reported at the end of the block; those with several passes,
        perhaps by each pass.
        """

    def grad(self, x: Tensor) -> Tensor:
        """Return the live gradient of `x`; raise `InvalidInput` if it has none."""

    def move_grad(self, x: Tensor, flat: Tensor, first: int) -> bool:
        """Move the gradient of `x` into the vector `flat`, from element `first` on.

        Its values are copied there; without a gradient, `x` takes those of `flat`.
        Returns False, and does nothing, where gradients need their own storage.
        """

    def clear_grad_(self, x: Tensor) -> None:
        """Set the gradient of `x` to zero."""

    def detach(self, x: Tensor) -> Tensor:
        """Return the values of `x` outside the graph; may share storage with `x`."""

    # -- operations of the models ---------------------------------------------------

    def sum(self, x: Tensor, axis: Axes, keepdims: bool = False) -> Tensor:
        """Sum over one or several dimensions."""

    def max(self, x: Tensor, axis: Axes, keepdims: bool = False) -> Tensor:
        """Return the maximum over one or several dimensions, without a gradient."""

    def exp(self, x: Tensor) -> Tensor:
        """Compute e to the power x, elementwise."""

    def log(self, x: Tensor) -> Tensor:
        """Compute the natural logarithm, elementwise."""

    def sqrt(self, x: Tensor) -> Tensor:
        """Compute the correctly rounded square root, without a gradient."""

    def transpose(self, x: Tensor, axes: Shape) -> Tensor:
        """Permute the dimensions: dimension i of the result is `axes[i]` of `x`."""

    def concat(self, xs: Tensors, axis: int = 0) -> Tensor:
        """Join tensors along one dimension."""

    def argmax(self, x: Tensor, axis: int = -1) -> Tensor:
        """Return the index of the largest value along one dimension."""

    def relu(self, x: Tensor) -> Tensor:
        """Compute max(x, 0), elementwise; its gradient at 0 is 0."""

    def gelu(self, x: Tensor) -> Tensor:
        """Compute x * Phi(x) with the exact normal distribution function."""

    def softmax(self, x: Tensor, axis: int = -1) -> Tensor:
        """Compute exp(x) / sum exp(x) along one dimension."""

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
        """Take the maximum of disjoint windows; on a tie any may get the gradient."""

    def embedding(self, ids: Tensor, W: Tensor) -> Tensor:
        """Look up rows: ids (...) of int64 and W (vocabulary, d) give (..., d).

        The caller keeps ids in 0..vocabulary-1: some frameworks read beyond the table.
        """

    def layer_norm(
        self, x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5
    ) -> Tensor:
        """Normalize the last dimension (biased variance, eps <= 1e-3), then scale."""

    def cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the loss of every example (n,): logits (n, classes), y (n,) of int64.

        Keep y in 0..classes-1, as with `embedding`.
        """
