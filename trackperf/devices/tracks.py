"""Values that hold for a time, and their time-weighted mean over a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Gauge", "Span", "Spread", "Track", "mean", "spread", "without"]

_ROOM: Final = 512
_NOMINAL_NS: Final = 250_000_000
_LONGEST_NS: Final = 10_000_000_000


class Span(NamedTuple):
    """A value and the time that it is of."""

    begin_ns: int
    end_ns: int
    value: float

    merged: Spread | None = None
    """Of which values it is the mean, where it is one."""


class Spread(NamedTuple):
    """How many values a mean is of, and between what they lie."""

    samples: int
    least: float
    most: float


class Track:
    """
    Spans of one quantity, in order, not overlapping, until they were taken.

    Room is bounded: when nobody takes for long, neighbours are merged, and no time is lost.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def add(self, begin_ns: int, end_ns: int, value: float) -> None:
        """Add a value for a time; what is told already of that time stands."""
        if self._spans:
            begin_ns = max(begin_ns, self._spans[-1].end_ns)
        if end_ns > begin_ns:
            self._spans.append(Span(begin_ns, end_ns, value))
            if len(self._spans) >= _ROOM:
                self._spans = _halved(self._spans)

    def take(self, begin_ns: int, end_ns: int) -> list[Span]:
        """Return what is within a window, cut at its ends, and let go of all before its end."""
        within = [
            span
            if begin_ns <= span.begin_ns and span.end_ns <= end_ns
            else span._replace(begin_ns=max(span.begin_ns, begin_ns), end_ns=min(span.end_ns, end_ns))
            for span in self._spans
            if span.end_ns > begin_ns and span.begin_ns < end_ns
        ]
        self._spans = [span for span in self._spans if span.end_ns > end_ns]
        return within

    def clear(self) -> None:
        """Let go of everything."""
        self._spans.clear()

    def mean(self, begin_ns: int, end_ns: int, least: float) -> float | None:
        """
        Take a window's time-weighted mean.

        Args:
            begin_ns: start of the window.

            end_ns: its end.

            least: share of the window that must be known; with less there is no mean.
        """
        return mean(self.take(begin_ns, end_ns), end_ns - begin_ns, least)


class Gauge:
    """A quantity that is polled: each value is of the time since the poll before, however long that was."""

    def __init__(self) -> None:
        self.track = Track()
        self._seen_ns: int | None = None

    def see(self, now_ns: int, value: float) -> None:
        """Take a value that was read now."""
        begin_ns = now_ns - _NOMINAL_NS if self._seen_ns is None else self._seen_ns
        self.track.add(max(begin_ns, now_ns - _LONGEST_NS), now_ns, value)
        self._seen_ns = now_ns

    def miss(self) -> None:
        """Note that there is no value: the time until the next one is not known."""
        self._seen_ns = None


def mean(spans: list[Span], window_ns: int, least: float) -> float | None:
    """Return the time-weighted mean of spans, or None when they make up less than a share of the window."""
    known_ns = sum(span.end_ns - span.begin_ns for span in spans)
    if known_ns <= 0 or known_ns < least * window_ns:
        return None
    return sum(span.value * (span.end_ns - span.begin_ns) for span in spans) / known_ns


def spread(spans: Sequence[Span]) -> Spread | None:
    """Return how many values spans are of, and between what those lie; None where there are none."""
    if not spans:
        return None
    merged = [span.merged for span in spans if span.merged is not None]
    values = [span.value for span in spans if span.merged is None]
    return Spread(
        len(values) + sum(part.samples for part in merged),
        min([*values, *(part.least for part in merged)]),
        max([*values, *(part.most for part in merged)]),
    )


def without(spans: list[Span], known: list[Span]) -> list[Span]:
    """Return the parts of spans for which nothing is known otherwise; both in order of time."""
    left: list[Span] = []
    for span in spans:
        begin_ns = span.begin_ns
        for other in known:
            if other.end_ns <= begin_ns or other.begin_ns >= span.end_ns:
                continue
            if other.begin_ns > begin_ns:
                left.append(span._replace(begin_ns=begin_ns, end_ns=other.begin_ns))
            begin_ns = other.end_ns
        if begin_ns < span.end_ns:
            left.append(span if begin_ns == span.begin_ns else span._replace(begin_ns=begin_ns))
    return left


def _halved(spans: list[Span]) -> list[Span]:
    """Merge neighbours that touch, two by two."""
    merged: list[Span] = []
    free = False
    for span in spans:
        if free and merged[-1].end_ns == span.begin_ns:
            before = merged[-1]
            both = [before, span]
            value = mean(both, 0, 0.0)
            value = span.value if value is None else value
            merged[-1] = Span(before.begin_ns, span.end_ns, value, spread(both))
            free = False
        else:
            merged.append(span)
            free = True
    # Spans with gaps between them do not merge; then the oldest have to go.
    return merged if len(merged) < _ROOM else merged[-_ROOM // 2 :]
