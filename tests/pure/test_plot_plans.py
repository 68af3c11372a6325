"""Pictures of plans show what the plans do, and the step slider needs no network."""

import re

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from d2lmulti.plans.allreduce import ALLREDUCE, halving_doubling, ring, star
from d2lmulti.plans.collectives import allgather
from d2lmulti.plans.verify import snapshots
from d2lmulti_book.figures.plans import (
    COMPLETE,
    dark,
    held_colour,
    held_text,
    plan_states,
)
from d2lmulti_book.figures.steps import plan_steps


def texts(ax):
    return [t.get_text() for t in ax.texts]


def test_the_film_of_a_ring_shows_sums_grow_by_one_rank_a_round():
    edges, frames = snapshots(ring(4, 8), 4, 8)
    assert edges.tolist() == [0, 2, 4, 6, 8]
    assert len(frames) == 7
    for step in range(4):
        assert frames[step].sum(axis=2).max() == step + 1
    assert (frames[-1] == 1).all()


def test_pieces_with_one_fate_are_one_piece():
    edges, frames = snapshots(star(3, 12), 3, 12)
    assert edges.tolist() == [0, 12]
    assert [f.shape for f in frames] == [(3, 1, 3)] * 3


def test_partial_sums_are_named_and_darken():
    rows = np.tril(np.ones((5, 5), int))
    assert [held_text(row) for row in rows] == ["0", "01", "012", "0123", "all"]
    assert held_text(np.zeros(3)) == "" and held_text(np.ones(1)) == "0"
    assert held_text(np.eye(12, dtype=int)[11] + np.eye(12, dtype=int)[1]) == "1,11"
    light = [sum(held_colour(row)) for row in rows[:4]]
    assert light == sorted(light, reverse=True)
    assert held_colour(rows[4]) == COMPLETE and dark(COMPLETE)
    assert held_colour(np.zeros(3)) == "white" and not dark("white")
    assert dark(held_colour(rows[3])) and not dark(held_colour(rows[0]))


@pytest.mark.parametrize("name", ALLREDUCE)
def test_the_last_panel_is_complete(name):
    figure = plan_states(ALLREDUCE[name](5, 10), 5, 10, name)
    panels = [ax for ax in figure.axes if ax.get_title()]
    rounds = len(list(ALLREDUCE[name](5, 10)))
    assert [ax.get_title() for ax in panels] == [
        "start",
        *(f"round {i}" for i in range(1, rounds + 1)),
    ]
    ranks = [str(rank) for rank in range(5)]
    assert sorted({t for t in texts(panels[-1]) if t not in ranks}) == ["all"]
    assert {t for t in texts(panels[0])} == set(ranks)
    plt.close(figure)


def test_other_collectives_can_be_drawn():
    figure = plan_states(allgather(3, 6), 3, 6, collective="allgather")
    assert texts(figure.axes[0]).count("") == 6  # what a rank has not got yet
    assert texts(figure.axes[2]).count("") == 0
    plt.close(figure)


def test_the_slider_has_a_frame_a_round_and_needs_no_network():
    steps = plan_steps(halving_doubling(6, 8), 6, 8, "Six <ranks>")
    source = steps._repr_html_()
    assert source.count("<g>") == 1 and source.count("<g style=") == 6
    assert 'max="6"' in source and "Round 6 of 6: 2 messages, 16 numbers" in source
    assert "Six &lt;ranks&gt;" in source
    assert not re.search(r"https?:|src=|@import|<link", source)
    assert len(source) < 50_000


def test_the_slider_is_the_same_every_time_and_its_name_its_own():
    one, again = (plan_steps(ring(3, 6), 3, 6, "A ring").html for _ in range(2))
    other = plan_steps(ring(3, 6), 3, 6, "Another ring").html
    assert one == again != other
    names = {re.search(r'data-name="(\w+)"', page)[1] for page in (one, other)}
    assert len(names) == 2
