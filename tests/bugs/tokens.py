"""Seeded bugs of attention over ranks and of experts; part of `bugs.py`."""

from __future__ import annotations

from bugs.bug import Bug

SEQUENCE = "backends/test_sequence.py::test_any_parts_equal_one_device[torch]"
EXPERTS = "backends/test_experts.py::test_any_shares_equal_one_device[torch]"

TOKEN_BUGS = [
    Bug(
        "the online softmax forgets to scale down what it has",
        "parallel/online_softmax.py",
        "rescale = B.exp(so_far[0] - top)",
        "rescale = 1.0",
        SEQUENCE,
    ),
    Bug(
        "keys and values go round the wrong way",
        "parallel/sequence.py",
        "make_round(rank, (rank + 1) % group.size,",
        "make_round(rank, (rank - 1) % group.size,",
        SEQUENCE,
    ),
    Bug(
        "the gradients of tokens stay with the experts",
        "comm/cooperative.py",
        'forward, backward = "all-to-all", "all-to-all"',
        'forward, backward = "all-to-all", "identity"',
        EXPERTS,
    ),
]
