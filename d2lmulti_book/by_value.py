"""Run a notebook's function in a new process: pickle its code instead of its name.

A new process imports the function that it runs, and a notebook is not a module.
Chapter: *bottlenecks*.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle


class ByValue:
    """`Process(target=ByValue(f))` runs f, even if f is defined in a cell."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = cloudpickle.dumps(function)

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return pickle.loads(self.function)(*args)
