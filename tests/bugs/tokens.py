"""Seeded bugs of attention over ranks and of experts; part of `bugs.py`."""

from __future__ import annotations

from bugs.bug import Bug

SEQUENCE = "backends/test_sequence.py::test_any_parts_equal_one_device[torch]"
EXPERTS = "backends/test_experts.py::test_any_shares_equal_one_device[torch]"

TOKEN_BUGS = [
    Bug(
        "the online softmax forgets to scale down what it has",
        "parallel/sequence/blocks.py",
        "fade = B.exp(so_far[0] - top)",
        "fade = 1.0",
        SEQUENCE,
    ),
    Bug(
        "keys and values go round the wrong way",
        "parallel/sequence/ring.py",
        "rank, (rank + 1) % n, first",
        "rank, (rank - 1) % n, first",
        SEQUENCE,
    ),
    Bug(
        "the gradients of tokens stay with the experts",
        "plans/requests.py",
        'forward, backward = "all-to-all", "all-to-all"',
        'forward, backward = "all-to-all", "identity"',
        EXPERTS,
    ),
]
