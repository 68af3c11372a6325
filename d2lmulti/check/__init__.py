"""Check your own: graders for the functions that the chapters build.

For example::

    from d2lmulti import check
    check.split_batch(my_split_batch)

Each grader calls your function on inputs from small to large, on several devices, in
float64, and compares with one device or with rules for the result. It returns a
`Report`: what was checked, or the smallest input that fails, what was expected, the
kind of mistake that gives this, and where the book explains it.

A function that runs for more than 20 seconds on one input is interrupted, and the
report names the line where it was. This needs the main thread, as in a notebook, and
does not work on Windows or under a debugger. It cannot interrupt one long call of
compiled code or a loop that catches all errors with a bare `except:`, and it does not
end threads or processes that your function started.
"""

from .data_parallel import (
    allreduce,
    get_params,
    plan,
    reduce_scatter,
    split_batch,
    train_batch,
)
from .model_parallel import experts, ring_attention, schedule, tensor_pair, zero
from .report import Report
from .training import resume, sampler, warmup

__all__ = [
    "Report",
    "allreduce",
    "experts",
    "get_params",
    "plan",
    "reduce_scatter",
    "resume",
    "ring_attention",
    "sampler",
    "schedule",
    "split_batch",
    "tensor_pair",
    "train_batch",
    "warmup",
    "zero",
]
