"""What is usual in this run: medians of its own windows, kept in bounded memory."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RATES", "Steady", "rate_key"]

RATES: Final = (
    "perf/tokens_per_s",
    "perf_rank/tokens_per_s",
    "perf/samples_per_s",
    "perf_rank/samples_per_s",
    "perf/step_ms",
)
"""What says how fast a run is, the best first: sequences of varying length change all but tokens."""

_KEPT: Final = (
    *RATES,
    "perf/data_pct",
    "perf/gpu_util_pct",
    "perf_step/device_ms",
    "perf_step/samples",
    "perf_data/h2d_ms",
    "perf_gpu/sm_clock_mhz",
    "perf_gpu/thermal_throttle_pct",
    "perf_host/cpu_pct",
)
_ROOM: Final = 128
_SIGMA: Final = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


def rate_key(values: Mapping[str, float]) -> str | None:
    """Return the key of the best measure of speed among the values of a window."""
    return next((key for key in RATES if values.get(key, 0.0) > 0), None)


class Steady:
    """
    Medians over the run so far.

    Of each series at most 128 values are kept, spread evenly over the run: when they are full, every second
    goes, and from then on every second window is left out. A change for good becomes what is usual when it
    has lasted for half of the run.
    """

    def __init__(self, least: int = 20) -> None:
        """
        Args:
            least: windows below which nothing is called usual.
        """
        self._least = least
        self._tracks = {key: _Thinned() for key in _KEPT}

    def add(self, values: Mapping[str, float]) -> None:
        """Take the values of a steady window."""
        for key, track in self._tracks.items():
            value = values.get(key)
            if value is not None:
                track.add(value)

    def median(self, key: str) -> float | None:
        """Return the median of a series, None while too few windows had it."""
        track = self._tracks.get(key)
        return track.summary()[0] if track is not None and track.seen >= self._least else None

    def noise(self, key: str) -> float | None:
        """Return a standard deviation of a series that outliers do not touch, None as for the median."""
        track = self._tracks.get(key)
        return track.summary()[1] if track is not None and track.seen >= self._least else None


class _Thinned:
    """Values spread evenly over all that came."""

    def __init__(self) -> None:
        self.seen = 0
        self._stride = 1
        self._values: list[float] = []
        self._summary: tuple[float, float] | None = None

    def add(self, value: float) -> None:
        self.seen += 1
        if (self.seen - 1) % self._stride:
            return
        self._values.append(value)
        self._summary = None
        if len(self._values) >= _ROOM:
            self._values = self._values[::2]
            self._stride *= 2

    def summary(self) -> tuple[float, float]:
        """Return median and noise."""
        if self._summary is None:
            middle = statistics.median(self._values)
            apart = statistics.median([abs(value - middle) for value in self._values])
            self._summary = (middle, _SIGMA * apart)
        return self._summary
