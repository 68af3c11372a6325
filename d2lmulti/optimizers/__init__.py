"""Optimizers whose arithmetic gives the same bits on every framework, by name."""

from __future__ import annotations

from ..checks import check_choice, shown
from ..errors import InvalidInput
from .adam import Adam, AdamW
from .sgd import SGD, Optimizer, check_optimizer, check_states

OPTIMIZERS = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def make_optimizer(
    optimizer: str | Optimizer, momentum: float | None = None
) -> Optimizer:
    """Return the optimizer of that name, `sgd` with momentum 0.9, or the one given.

    Raises `InvalidInput` for what is none, and for a momentum that is not SGD's.
    """
    if isinstance(optimizer, str) or optimizer is None:
        check_choice("optimizer", optimizer, OPTIMIZERS)
    else:
        check_optimizer(optimizer)
    if isinstance(optimizer, str) and optimizer == "sgd":
        return SGD(0.9 if momentum is None else momentum)
    if momentum is not None:
        raise InvalidInput(
            f"expected a momentum with the optimizer sgd only, got {momentum!r} with "
            f"{shown(optimizer)}; leave it out, or give SGD(momentum)"
        )
    return OPTIMIZERS[optimizer]() if isinstance(optimizer, str) else optimizer


__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "check_optimizer",
    "check_states",
    "make_optimizer",
]
