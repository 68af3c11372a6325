"""What models say of examples that they were not made for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..backends import checks
from ..backends.protocol import Backend, Tensor
from ..errors import D2LMultiError, InvalidInput


@contextmanager
def explained(name: str, X: Tensor) -> Iterator[None]:
    """Say of which model and which examples a framework's own error tells.

    Raises `InvalidInput` in its place; the errors of this library go on as they are.
    """
    try:
        yield
    except D2LMultiError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise InvalidInput(
            f"{name} cannot compute examples of shape {tuple(X.shape)} and "
            f"dtype {str(X.dtype).rpartition('.')[2]} with these parameters "
            f"({type(error).__name__}: {first:.200}); give it those it was made for"
        ) from error


def check_targets(
    B: Backend, logits: Tensor, y: Tensor, on_cpu: Tensor | None = None
) -> None:
    """Refuse targets (n,) that are not one a row of logits, or no class.

    Reading y on a GPU would mean to wait for the GPU. Where y was copied there, the
    targets `on_cpu` that it was copied from are checked instead. The check must come
    before the loss: a wrong target ends all CUDA work of a PyTorch or Paddle process,
    MXNet takes the nearest class, and Paddle on a CPU counts from the last.
    """
    rows, classes = (int(extent) for extent in logits.shape)
    if rows != len(y):
        raise InvalidInput(
            f"expected a row of logits for each of {len(y)} targets, got {rows}; give "
            "the model the examples that it was made for"
        )
    if on_cpu is not None and B.device_of(y) != "cpu":
        y = on_cpu
    if B.device_of(y) == "cpu":
        checks.ids(B.numpy(y), classes)
