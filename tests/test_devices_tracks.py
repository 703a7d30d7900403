"""Values that hold for a time, and their means."""

from __future__ import annotations

import pytest

from trackperf.devices.tracks import Gauge, Span, Spread, Track, mean, spread, without

S = 1_000_000_000


def test_mean_is_weighted_by_time() -> None:
    """Three seconds of 10 and one of 50 are 20 on average."""
    track = Track()
    track.add(0, 3 * S, 10.0)
    track.add(3 * S, 4 * S, 50.0)
    assert track.mean(0, 4 * S, 0.5) == 20.0


def test_window_cuts_what_reaches_over_its_ends() -> None:
    """Of a value that holds across a window's end, each window has its part."""
    track = Track()
    track.add(0, 2 * S, 10.0)
    track.add(2 * S, 6 * S, 40.0)
    assert track.mean(0, 3 * S, 0.5) == pytest.approx(20.0)
    assert track.mean(3 * S, 5 * S, 0.5) == 40.0
    assert track.mean(5 * S, 6 * S, 0.5) == 40.0
    assert track.mean(6 * S, 7 * S, 0.0) is None


def test_too_little_is_nothing() -> None:
    """A window of which less is known than is asked for has no mean."""
    track = Track()
    track.add(0, S, 10.0)
    assert track.mean(0, 4 * S, 0.5) is None
    assert mean([], S, 0.0) is None


def test_what_is_known_stands() -> None:
    """A value that reaches back into time that has one already is only of the rest."""
    track = Track()
    track.add(0, 2 * S, 10.0)
    track.add(S, 3 * S, 40.0)
    track.add(S, 2 * S, 99.0)
    assert track.take(0, 9 * S) == [Span(0, 2 * S, 10.0), Span(2 * S, 3 * S, 40.0)]


def test_room_is_bounded_and_no_time_is_lost() -> None:
    """A hundred thousand values that nobody takes need little room, and still have their mean."""
    track = Track()
    for number in range(100_000):
        track.add(number * S, (number + 1) * S, float(number))
    assert track.mean(0, 100_000 * S, 1.0) == pytest.approx(99_999 / 2)
    for number in range(100_000):
        track.add(number * 2 * S, (number * 2 + 1) * S, 1.0)
    assert len(track.take(0, 1 << 62)) <= 512


def test_irregular_polls() -> None:
    """A value that was polled late is of all the time since the poll before."""
    gauge = Gauge()
    for now_s, value in ((1, 0.0), (2, 10.0), (5, 50.0)):
        gauge.see(now_s * S, value)
    assert gauge.track.mean(S, 5 * S, 1.0) == pytest.approx((10 + 150) / 4)


def test_missed_polls() -> None:
    """The time of polls without a value is not known."""
    gauge = Gauge()
    gauge.see(S, 10.0)
    gauge.miss()
    gauge.see(9 * S, 90.0)
    spans = gauge.track.take(0, 9 * S)
    assert [span.value for span in spans] == [10.0, 90.0]
    assert sum(span.end_ns - span.begin_ns for span in spans) == S // 2


def test_holes_are_what_is_not_known_otherwise() -> None:
    """What is polled only counts where samples have holes."""
    polled = [Span(0, 10, 1.0), Span(10, 20, 2.0)]
    sampled = [Span(3, 5, 9.0), Span(8, 12, 9.0), Span(18, 30, 9.0)]
    assert without(polled, sampled) == [Span(0, 3, 1.0), Span(5, 8, 1.0), Span(12, 18, 2.0)]
    assert without(polled, []) == polled
    assert without(polled, [Span(0, 20, 9.0)]) == []


def test_spread_of_what_was_cut_and_merged() -> None:
    """Values are counted once whatever was made of their spans, and extremes are those of the values."""
    track = Track()
    for number in range(3000):
        track.add(number * S, (number + 1) * S, 7.0 if number == 1234 else 50.0 + number % 2)
    taken = track.take(0, 3000 * S)
    assert len(taken) < 600
    assert spread(taken) == Spread(3000, 7.0, 51.0)
    assert spread([]) is None
    holes = without(taken, [Span(0, 2990 * S, 1.0)])
    assert spread(holes) is not None
    assert sum(span.end_ns - span.begin_ns for span in holes) == 10 * S
