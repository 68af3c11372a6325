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


def check_targets(B: Backend, logits: Tensor, y: Tensor) -> None:
    """Refuse targets (n,) that are not one a row of logits, or no class.

    What is no class is seen where y lies on the CPU: MXNet would take the nearest one,
    Paddle count from the last. To look at a GPU's would mean to wait for it.
    """
    rows, classes = (int(extent) for extent in logits.shape)
    if rows != len(y):
        raise InvalidInput(
            f"expected a row of logits for each of {len(y)} targets, got {rows}; give "
            "the model the examples that it was made for"
        )
    if B.device_of(y) == "cpu":
        checks.ids(B.numpy(y), classes)
