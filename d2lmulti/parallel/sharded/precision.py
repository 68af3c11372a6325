"""Mixed precision: computed and sent in 16 bits, updated in 32.

A step is small beside its weight, and in bfloat16, with 8 significant bits, a sum that
is more than 256 times larger does not change. So each rank keeps its part of the
weights in float32 besides, the *master*, and its optimizer updates that.
Source: Micikevicius et al. (2018). Chapter: *sharding*.
"""

from __future__ import annotations

from ...backends.protocol import AnyDevice, Backend
from ...checks import check_choice
from ...errors import InvalidInput

PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}


def check_precision(
    B: Backend, precision: str | None, dtype: str, device: AnyDevice
) -> str | None:
    """Give the dtype to compute in, or None; refuse one that the device has not."""
    if precision is None:
        return None
    check_choice("precision", precision, PRECISIONS)
    if dtype != "float32":
        raise InvalidInput(
            f"expected parameters in float32 for the masters of {precision}, got "
            f"{dtype}; make them float32, or leave precision out"
        )
    low = PRECISIONS[precision]
    try:
        x = B.cast(B.zeros((1, 1), "float32", device), low)
        B.numpy(x @ x)
    except (InvalidInput, RuntimeError, TypeError, NotImplementedError) as error:
        raise InvalidInput(
            f"expected a precision that {B.name} computes in on {device}, got "
            f"{precision}; on CPUs torch has bf16 and fp16, numpy fp16, mxnet and "
            "paddle neither. Leave precision out"
        ) from error
    return low
