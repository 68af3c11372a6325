"""Different calls are an error that names them: of all ranks, or of those of an axis.

It ends the ranks, so this file comes after those that ask them for something else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from processes.staying import Staying, started_once

import d2lmulti
from d2lmulti.backends import get_backend
from d2lmulti.backends.protocol import Backend
from d2lmulti.comm.mesh import Mesh
from d2lmulti.processes.process_group import started
from d2lmulti.processes.spawn import ProcessFailed


def other_shapes() -> None:
    rank = started().local_ranks[0]
    d2lmulti.allreduce([get_backend().array(np.zeros(3 + rank))])


def other_shapes_along_an_axis() -> None:
    mesh = Mesh(data=2, tensor=2)
    (rank,) = mesh.group.local_ranks
    zeros = get_backend().array(np.zeros(3 + (rank == 3)))
    mesh.along("data", d2lmulti.allreduce, [zeros[:3]])
    mesh.along("tensor", d2lmulti.allreduce, [zeros])  # ranks 0 and 1 go on alone


@pytest.mark.parametrize(
    ("engine", "backend", "n"),
    [
        pytest.param(*group, marks=started_once(*group))
        for group in [
            ("torch", "torch", 2), ("paddle", "paddle", 2),
            ("torch", "torch", 4), ("shared_memory", "numpy", 4),
        ]
    ],
)  # fmt: skip
def test_different_calls_are_an_error_that_names_them(
    engine: str, backend: str, n: int, load: Callable[[str], Backend], staying: Staying
) -> None:
    load(backend)
    call, words = (
        (other_shapes, ("rank 0", "rank 1", "of (3,) float64", "of (4,) float64"))
        if n == 2
        else (
            other_shapes_along_an_axis,
            ("of (3,) float64 along tensor, ranks 2, 3", "of (4,) float64 along"),
        )
    )
    with pytest.raises(ProcessFailed) as failed:
        staying(engine, backend, n)(call)
    for fact in ("expected every rank to make the same calls", *words):
        assert fact in str(failed.value)
