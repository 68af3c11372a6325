"""What each layer of a network costs, measured: forward and backward, in seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...backends import backend_of
from ...backends.protocol import Tensor
from ...errors import InvalidInput
from ...models.model import Model


def layer_seconds(
    model: Model, params: Sequence[Tensor], X: Tensor, repeats: int = 3
) -> list[float]:
    """Time each layer's forward and backward pass on X; the best of `repeats`.

    The parameters are not changed. Raises `InvalidInput` for a model that is no
    sequence of layers.
    """
    if not model.layers:
        raise InvalidInput(
            f"expected a model written as a sequence of layers, got {model.name!r}"
        )
    B = backend_of(X)
    seconds, first = [], 0
    for layer in model.layers:
        mine = [B.copy_to(p, B.device_of(p)) for p in params[first:][: layer.params]]
        for p in mine:
            B.attach_grad(p)
        first += layer.params
        times = []
        for _ in range(max(1, repeats)):
            if B.dtype_of(X).startswith("float"):
                B.attach_grad(X := B.copy_to(X, B.device_of(X)))
            B.synchronize()
            began = time.perf_counter()
            with B.record():
                y = layer.forward(B, mine, X)
            B.backward([y]) if mine else None
            B.synchronize()
            times.append(time.perf_counter() - began)
        seconds.append(min(times))
        X = B.copy_to(y, B.device_of(y))
    return seconds
