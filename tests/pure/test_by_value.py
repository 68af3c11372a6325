"""A function that no module holds runs in a process that was not forked from ours."""

from __future__ import annotations

import multiprocessing
import pickle

import pytest

from d2lmulti_book.by_value import ByValue


def test_a_local_function_arrives_with_what_it_uses():
    shift = 3

    def add(a, b):
        return a + b + shift

    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(add)
    assert pickle.loads(pickle.dumps(ByValue(add)))(1, 2) == 6


def test_it_runs_in_a_spawned_process():
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(
        target=ByValue(lambda q, n: q.put((n, multiprocessing.current_process().name))),
        args=(answers, 5),
        name="elsewhere",
    )
    process.start()
    try:
        assert answers.get(timeout=60) == (5, "elsewhere")
    finally:
        process.join(30)
        process.kill()
