"""The dtypes that tensors may have, by the names that NumPy gives them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from ..errors import InvalidInput

# A message between processes names a dtype by its place here, so add at the end only.
DTYPES = (
    *("float32", "float64", "float16", "int64", "int32", "uint8", "bool"),
    *("int8", "int16", "bfloat16", "complex64", "complex128"),
)
REAL = DTYPES[:10]
NUMPY_DTYPES = tuple(name for name in DTYPES if name != "bfloat16")
BFLOAT16 = np.dtype("V2")  # to NumPy it is two bytes of no meaning (see `memory.py`)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return what NumPy sees in the memory of a tensor of that dtype."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def dtype_name(dtype: Any, held: Collection[str]) -> str:
    """Return NumPy's name of a dtype that a backend holds, or refuse it."""
    try:
        name = dtype if dtype == "bfloat16" else np.dtype(dtype).name
    except TypeError:
        name = "none"
    if name not in held:
        raise InvalidInput(
            f"expected a dtype among {', '.join(held)}, got {dtype!r}; convert the "
            "values first, for example with numpy.asarray(values, 'float32')"
        )
    return name
