"""A notebook's function in a clean process: it travels as a value, not as a name.

A process that is not a copy of the notebook's imports what it is to run, and a notebook
is no module. Chapter: *bottlenecks*.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle


class ByValue:
    """`Process(target=ByValue(f))` runs f, also where f was written in a cell."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = cloudpickle.dumps(function)

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return pickle.loads(self.function)(*args)
