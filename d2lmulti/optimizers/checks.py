"""What optimizers refuse before they change anything."""

from __future__ import annotations

from typing import Any

from ..backends.checks import check_lists
from ..checks import check_count, check_list, check_positive
from ..errors import InvalidInput


def check_states(states: Any, owners: int, per: str = "device") -> Any:
    """Refuse all but one state for each device (or stage); those left out are empty."""
    if states is None:
        return [[]] * owners
    cure = "use [optimizer.start(params) for params in ...]"
    return check_lists("states", states, owners, per, least=0, cure=cure)


def check_step(
    params: Any, state: Any, lr: Any, n: Any, velocities: bool = False
) -> None:
    """Refuse what is no list of tensors, no rate, no number of examples."""
    check_list("params", params, "parameter tensors", least=0)
    check_list("state", state, "tensors", least=0, cure="see optimizer.start(params)")
    check_positive("lr", lr, "try 0.05")
    check_count("n", n, cure="n is the number of examples in the batch")
    if velocities and len(state) != len(params):
        raise InvalidInput(
            f"expected one velocity for each of {len(params)} parameters, got "
            f"{len(state)}; make them with optimizer.start(params) and keep them"
        )
