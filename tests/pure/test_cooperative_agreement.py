"""Ranks that make different calls get an error that names the ranks and the calls."""

import numpy as np
import pytest

from d2lmulti.backends import get_backend
from d2lmulti.checks import check_same
from d2lmulti.comm.cooperative import run_cooperatively
from d2lmulti.comm.group import local_group
from d2lmulti.errors import InvalidInput, name_ranks
from d2lmulti.plans.requests import Sum

B = get_backend("numpy")


def model(*calls):
    """Stand for a model that makes these calls and returns what it got last."""
    answer = None
    for call in calls:
        answer = yield call
    return answer


def sum_of(*shape):
    return Sum(B.array(np.ones(shape)))


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (
            [model(sum_of(2)), model(sum_of(3)), model(sum_of(2))],
            r"Sum of \(2,\) float64 on ranks 0, 2 and Sum of \(3,\) float64 on rank 1",
        ),
        (
            [model(sum_of(2)), model(sum_of(2), sum_of(2, 2)), model()],
            r"Sum of \(2,\) float64 on ranks 0, 1 and the end of the model on rank 2;",
        ),
        (
            [model(sum_of(2)), model(sum_of(2), sum_of(2, 2)), model(sum_of(2))],
            r"the end of the model on ranks 0, 2 and Sum of \(2, 2\) float64 on rank 1",
        ),
        (
            [model(sum_of(2)), model()],
            r"Sum of \(2,\) float64 on rank 0 and the end of the model on rank 1;",
        ),
        ([model("sum"), model("sum")], "to yield a call, got str"),
    ],
)
def test_ranks_that_part_ways_are_named(models, message):
    with pytest.raises(InvalidInput, match=message):
        run_cooperatively(B, models, local_group(len(models)))


def test_ranks_that_agree_get_the_sum():
    models = [model(sum_of(2), sum_of(3)) for _ in range(3)]
    outputs, _ = run_cooperatively(B, models, local_group(3), "ring")
    assert [B.numpy(total).tolist() for (total,) in outputs] == [[3, 3, 3]] * 3


def test_many_ranks_are_named_briefly():
    calls = {rank: "a sum" if rank else "a copy" for rank in range(100)}
    with pytest.raises(InvalidInput) as error:
        check_same(calls, "one call", "run the same program")
    assert str(error.value) == (
        "expected one call, got a copy on rank 0 and a sum on ranks 1, 2, 3, 4, 5, 6, "
        "7, 8 and 91 more; run the same program"
    )
    assert name_ranks([4]) == "rank 4"
