"""The timeline: exact spans, next to no cost unopened, a trace that viewers take."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.events import notify_work
from d2lmulti.observe.timeline import Span, Timeline, timeline


def ticks():
    """Make a clock that goes on by one second each time it is read."""
    return itertools.count().__next__


def test_a_span_that_an_error_ends_is_recorded():
    t = Timeline(ticks())
    with pytest.raises(KeyError), t.span("device 0", "forward"):
        raise KeyError
    assert len(t.spans) == 1


def test_spans_go_to_all_open_timelines_and_only_to_them():
    with notify_work(["device 0"], "lost"):
        pass
    with timeline(ticks()) as outer:
        with notify_work([0], "first"):
            pass
        with timeline(ticks()) as inner, notify_work([0], "second"):
            pass
    with notify_work([0], "lost"):
        pass
    assert [s.name for s in outer.spans] == ["first", "second"]
    assert inner.spans == [Span("0", "second", 1, 2)]


def test_unopened_a_span_neither_waits_nor_makes_an_object():
    waited = []
    with notify_work([0], "x", wait=lambda: waited.append(1)):
        pass
    assert waited == []
    assert notify_work([0], "x") is notify_work([1], "y")


def test_a_span_waits_before_each_reading_of_the_clock():
    seen = []

    def clock():
        seen.append("clock")
        return len(seen)

    with timeline(clock), notify_work([0], "x", wait=lambda: seen.append("wait")):
        seen.append("work")
    assert seen == ["clock", "wait", "clock", "work", "wait", "clock"]


def test_busy_counts_overlaps_once_and_tracks_apart():
    t = Timeline()
    for track, name, begin, end in [
        ("a", "x", 4, 6), ("a", "x", 0, 3), ("a", "y", 2, 5), ("b", "x", 0, 9),
        ("a", "x", 1, 2),
    ]:  # fmt: skip
        t.add(track, name, begin, end)
    assert (t.busy("a"), t.busy("a", "x"), t.busy("b", "y")) == (6, 5, 0)
    assert (t.tracks, t.names) == (["a", "b"], ["x", "y"])


def check_trace(trace):
    """Hold a trace against the format: fields, order, names of tracks, nesting."""
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert all(
        set(e) == {"ph", "pid", "tid", "name", "cat", "ts", "dur"} for e in events
    )
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in events)
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    assert not events or events[0]["ts"] == 0
    named = {
        e["tid"]: e["args"]["name"]
        for e in trace["traceEvents"]
        if e["ph"] == "M" and e["name"] == "thread_name"
    }
    assert {e["tid"] for e in events} == set(named)
    assert len(set(named.values())) == len(named)
    for tid in named:
        ends: list[float] = []
        for e in (e for e in events if e["tid"] == tid):
            begin, end = round(1e3 * e["ts"]), round(1e3 * (e["ts"] + e["dur"]))
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or end <= ends[-1], "partly overlapping spans of a lane"
            ends.append(end)
    return events, named


TIMES = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)


@given(st.lists(st.tuples(st.sampled_from("ab"), TIMES), max_size=12))
def test_a_trace_holds_every_span_and_lanes_nest(spans):
    t = Timeline()
    for track, (begin, end) in spans:
        t.add(track, "work", 1e-3 * begin / 7, 1e-3 * end / 7)
    events, named = check_trace(t.trace())
    assert len(events) == len(spans)
    assert {name.split()[0] for name in named.values()} == {track for track, _ in spans}
