"""The timeline: spans of work on tracks, on a measured or a modeled clock.

`with timeline() as t:` records the work of the library in the block; then
`t.busy("sim:0")` returns seconds, and `t.trace()` a trace for Perfetto. A span has a
track (a device or a worker), a name, and two times. `d2lmulti_book.figures.timelines`
draws a timeline. Chapter: *bottlenecks*.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..events import observe


class Span(NamedTuple):
    """One span of work, in seconds from the timeline's start."""

    track: str  # the device, worker or process that worked
    name: str  # of the work
    begin: float
    end: float


class Timeline:
    """Named spans on tracks, in the order in which they were recorded.

    `clock` returns seconds, for measured spans. Modeled spans are added with their
    times, by `add`. Tracks are in the order of their first span.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.spans: list[Span] = []
        self.clock = clock
        self.start = clock()

    def now(self) -> float:
        """Return the seconds since the start."""
        return self.clock() - self.start

    def add(self, track: object, name: str, begin: float, end: float) -> None:
        """Add a span in seconds from the start; `track` is converted to text.

        For times that another process read from the same clock, subtract `start`.
        """
        self.spans.append(Span(str(track), name, begin, end))

    @contextmanager
    def span(self, track: object, name: str) -> Iterator[None]:
        """Add a span for the `with` block, also when an error ends it."""
        begin = self.now()
        try:
            yield
        finally:
            self.add(track, name, begin, self.now())

    @contextmanager
    def on_work(
        self, tracks: Sequence[object], name: str, wait: Callable[[], object] | None
    ) -> Iterator[None]:
        """Add a span for a block in which devices work, to the track of each.

        `wait` (a backend's `synchronize`) is called before the clock is read, so that
        asynchronous work is measured in its own block.
        """
        if wait:
            wait()  # for work that started before
        begin = self.now()
        try:
            yield
            if wait:
                wait()
        finally:
            end = self.now()
            for track in tracks:
                self.add(track, name, begin, end)

    @property
    def tracks(self) -> list[str]:
        """Return every track once."""
        return list(dict.fromkeys(span.track for span in self.spans))

    @property
    def names(self) -> list[str]:
        """Return every name once."""
        return list(dict.fromkeys(span.name for span in self.spans))

    @property
    def end(self) -> float:
        """Return the end of the last span, in seconds; 0 without spans."""
        return max((span.end for span in self.spans), default=0.0)

    def busy(self, track: object, name: str | None = None) -> float:
        """Return the seconds of a track's spans (of a name); overlaps count once.

        >>> t = Timeline()
        >>> t.add("device 0", "forward", 0.0, 2.0)
        >>> t.add("device 0", "copy", 1.0, 3.0)
        >>> t.busy("device 0"), t.busy("device 0", "copy")
        (3.0, 2.0)
        """
        total, reached = 0.0, -math.inf
        for span in sorted(self.spans, key=lambda span: span.begin):
            if span.track == str(track) and name in (None, span.name):
                total += max(0.0, span.end - max(span.begin, reached))
                reached = max(reached, span.end)
        return total

    def trace(self) -> dict[str, Any]:
        """Return a trace in the Chrome trace-event format, for Perfetto and Chrome.

        Times are in microseconds. Spans of one track that overlap without nesting go to
        a second lane, because a viewer would drop one of them. Write it with
        `files.write_json(path, t.trace())`.
        """
        zero = min((span.begin for span in self.spans), default=0.0)
        lanes: dict[tuple[str, int], list[Span]] = {}
        for track in self.tracks:
            own_spans = [span for span in self.spans if span.track == track]
            for span in sorted(own_spans, key=lambda span: (span.begin, -span.end)):
                lane = 0
                while not _fits(lanes.setdefault((track, lane), []), span):
                    lane += 1
                lanes[track, lane].append(span)
        header: list[dict[str, Any]] = [_name("process_name", 0, "d2lmulti")]
        events: list[dict[str, Any]] = []
        for tid, ((track, lane), spans) in enumerate(lanes.items(), 1):
            label = track if lane == 0 else f"{track} ({lane + 1})"
            header.append(_name("thread_name", tid, label))
            order = {"name": "thread_sort_index", "args": {"sort_index": tid}}
            header.append({"ph": "M", "pid": 0, "tid": tid, **order})
            for span in spans:
                # Round the ends, not the durations, so that nested spans stay nested.
                begin, end = (round(1e9 * (t - zero)) for t in span[2:])
                when = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
                event = {"ph": "X", "pid": 0, "tid": tid, "name": span.name}
                events.append({**event, "cat": "span", **when})
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        return {"traceEvents": header + events, "displayTimeUnit": "ms"}


def _name(kind: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": tid, "name": kind, "args": {"name": name}}


def _fits(lane: list[Span], span: Span) -> bool:
    """Return whether a span lies after or within each earlier one of a lane."""
    return all(span.begin >= other.end or span.end <= other.end for other in lane)


@contextmanager
def timeline(clock: Callable[[], float] = time.perf_counter) -> Iterator[Timeline]:
    """Record the work of the library inside the `with` block; timelines may nest."""
    opened = Timeline(clock)
    with observe(opened):
        yield opened
