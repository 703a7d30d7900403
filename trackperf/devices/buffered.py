"""
Utilisation from the driver's own buffer: a mean for every period, so that nothing between polls is missed.

What the stamps of that buffer count from is not documented: from the epoch on some drivers, from the start of
the machine on others. It is found by comparing the newest one with each clock that it may be.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import TYPE_CHECKING, Final

from trackperf.devices.tracks import Track

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackperf.devices.counters import Counter

__all__ = ["Buffered", "StampClock", "stamp_clocks"]

_OLDEST_NS: Final = 3_600_000_000_000
_AHEAD_NS: Final = 1_000_000_000
_SHORTEST_NS: Final = 10_000_000
_LONGEST_NS: Final = 1_100_000_000
_USUAL_NS: Final = 166_666_667


def stamp_clocks(wall: Callable[[], int] = time.time_ns) -> list[Callable[[], int]]:
    """
    Return the clocks in nanoseconds that stamps may be of.

    Args:
        wall: nanoseconds since the epoch.
    """
    clocks = [wall, time.monotonic_ns]
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is not None:
        clocks.append(lambda: time.clock_gettime_ns(boot))
    return clocks


class StampClock:
    """Tells when, on the monotonic clock, the driver stamped a sample."""

    def __init__(self, clocks: Sequence[Callable[[], int]]) -> None:
        """
        Args:
            clocks: those that stamps may be of.
        """
        self._clocks = clocks
        self._chosen: Callable[[], int] | None = None
        self._least_ns: int | None = None

    def shift(self, now_ns: int, newest_us: int) -> int:
        """
        Return what to add to a stamp, in nanoseconds, to have it on the monotonic clock.

        Asked anew every time: a wall clock may be set.

        Args:
            now_ns: monotonic time now.

            newest_us: the newest stamp.
        """
        newest_ns = newest_us * 1000
        if self._chosen is None or not -_AHEAD_NS <= self._chosen() - newest_ns <= _OLDEST_NS:
            ages = [(clock() - newest_ns, place) for place, clock in enumerate(self._clocks)]
            near = [(abs(age), place) for age, place in ages if -_AHEAD_NS <= age <= _OLDEST_NS]
            self._chosen = self._clocks[min(near)[1]] if near else None
        if self._chosen is not None:
            return now_ns - self._chosen()
        # An unknown clock: the newest sample cannot be of the future, and once was nearly of that moment.
        shift_ns = now_ns - newest_ns
        self._least_ns = shift_ns if self._least_ns is None else min(self._least_ns, shift_ns)
        return self._least_ns


class Buffered:
    """One kind of samples of one device."""

    def __init__(self, counter: Counter, clock: StampClock, told: Counter) -> None:
        """
        Args:
            counter: how it is with this kind of samples.

            clock: tells when a sample is of.

            told: the counter on whose account wrong values are counted.
        """
        self.track = Track()
        self._counter = counter
        self._clock = clock
        self._told = told
        self._seen_us = 0

    def drain(self, now_ns: int, fetch: Callable[[int], list[tuple[int, float]]]) -> None:
        """
        Take what the buffer holds that was not seen.

        Args:
            now_ns: monotonic time now.

            fetch: returns the samples after a stamp.
        """
        seen_us = self._seen_us
        samples = self._counter.ask(now_ns, lambda: fetch(seen_us))
        if not samples:
            return
        # Their order is that of their places in a ring. Those seen may come again.
        new = sorted((stamp, value) for stamp, value in samples if stamp > seen_us)
        if not new:
            return
        shift_ns = self._clock.shift(now_ns, new[-1][0])
        period_ns = _period([seen_us, *(stamp for stamp, _ in new)] if seen_us else [s for s, _ in new])
        before_us = seen_us
        for stamp_us, value in new:
            gap_ns = (stamp_us - before_us) * 1000
            length_ns = gap_ns if gap_ns <= 1.5 * period_ns else period_ns
            before_us = stamp_us
            if not 0 <= value <= 100:
                self._told.reject(value)
                continue
            end_ns = min(stamp_us * 1000 + shift_ns, now_ns)
            self.track.add(end_ns - length_ns, end_ns, value)
        self._seen_us = new[-1][0]

    @property
    def delivers(self) -> bool:
        """Whether there have been samples, and they can be asked for still."""
        return self._seen_us > 0 and self._counter.state == "ok"


def _period(stamps_us: Sequence[int]) -> int:
    """Return the usual time between samples."""
    gaps_ns = [(after - before) * 1000 for before, after in itertools.pairwise(stamps_us)]
    usual = [gap for gap in gaps_ns if _SHORTEST_NS <= gap <= _LONGEST_NS]
    return round(statistics.median(usual)) if usual else _USUAL_NS
