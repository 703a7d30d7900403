"""
A window: what some steps in a row add up to, in sums that can be merged exactly.

Several windows merged hold what one window over all their steps would have held. Quantiles are exact up to
`EXACT` values; beyond, values fall into logarithmic bins 1 % wide, which merge exactly too.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

__all__ = ["EXACT", "Distribution", "Totals", "Window"]

EXACT: Final = 4096
"""Number of values up to which a distribution keeps them all."""

_CUMULATIVE: Final = "energy_j"
"""Readings that count from the run's beginning: the last one stands."""

_PICK: Final[dict[str, Callable[[float, float], float]]] = {
    "util_samples": operator.add,
    "util_min_pct": min,
    "util_max_pct": max,
}
"""Readings that are no means: what two windows of them come to."""

_GROWTH: Final = math.log(1.01)
_LOWEST: Final = 1e-6
_BINS: Final = math.ceil(math.log(1e18) / _GROWTH)
_PARTS: Final = 64


class Distribution:
    """Values in no order: their number, sum, largest, and quantiles. Values are not negative."""

    __slots__ = ("_bins", "_single", "_sorted", "_values", "largest", "n", "total")

    def __init__(self) -> None:
        self.n = 0
        self.total = 0.0
        self.largest = 0.0
        self._values: list[NDArray[np.float64]] = []
        self._single: list[float] = []
        self._sorted: NDArray[np.float64] | None = None
        self._bins: NDArray[np.int64] | None = None

    def add(self, values: NDArray[np.float64]) -> None:
        """Add values, shape (n,)."""
        if values.size:
            self._note(int(values.size), float(values.sum()), float(values.max()))
            self._values.append(values)
            self._settle()

    def add_one(self, value: float) -> None:
        """Add a value."""
        self._note(1, value, value)
        self._single.append(value)
        if len(self._single) >= _PARTS:
            self._settle()

    def merge(self, other: Distribution) -> None:
        """Add all values of `other`."""
        self._note(other.n, other.total, other.largest)
        self._single.extend(other._single)
        self._values.extend(other._values)
        if other._bins is not None:
            self._bins = other._bins.copy() if self._bins is None else self._bins + other._bins
            self._to_bins()
        self._settle()

    def quantile(self, q: float) -> float:
        """
        Return the value below which the share `q` of all lies.

        Raises:
            ValueError: there are no values.
        """
        if not self.n:
            raise ValueError("no values, no quantile")
        if self._bins is None and self.n <= EXACT:
            return self._exact(q)
        place = int(np.searchsorted(np.cumsum(self._to_bins()), q * self.n))
        middle = _LOWEST * math.exp((place - 0.5) * _GROWTH) if place else 0.0
        return min(middle, self.largest)

    def _note(self, n: int, total: float, largest: float) -> None:
        self.n += n
        self.total += total
        self.largest = max(self.largest, largest)
        self._sorted = None

    def _settle(self) -> None:
        """Keep the number of parts small, and of values no more than are kept."""
        if self._bins is not None or self.n > EXACT:
            # Not at once: each step of array work may let the training in between, and come back late.
            if len(self._values) >= _PARTS or sum(part.size for part in self._values) > 4 * EXACT:
                self._to_bins()
        elif len(self._values) + len(self._single) >= _PARTS:
            self._values = [self._joined()]
            self._single = []

    def _joined(self) -> NDArray[np.float64]:
        return np.concatenate([*self._values, np.array(self._single, np.float64)])

    def _exact(self, q: float) -> float:
        """Interpolate between the two nearest; a quarter of the time of `numpy.quantile`, once a window."""
        if self._sorted is None:
            self._sorted = np.sort(self._joined())
        place = q * (self.n - 1)
        low = int(place)
        below = float(self._sorted[low])
        above = float(self._sorted[min(low + 1, self.n - 1)])
        return below + (place - low) * (above - below)

    def _to_bins(self) -> NDArray[np.int64]:
        bins = np.zeros(_BINS + 1, np.int64) if self._bins is None else self._bins
        if self._values or self._single:
            bins += self._counts(self._joined())
            self._values, self._single = [], []
        self._bins = bins
        return bins

    @staticmethod
    def _counts(values: NDArray[np.float64]) -> NDArray[np.int64]:
        place = np.zeros(values.size, np.int64)
        large = values > _LOWEST
        place[large] = np.clip(np.ceil(np.log(values[large] / _LOWEST) / _GROWTH), 1, _BINS)
        return np.bincount(place, minlength=_BINS + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Where the run stands: sums since it began, earlier parts of a resumed run included."""

    steps: int = 0
    samples: int | None = 0
    """None once any batch of the run was of unknown size."""
    tokens: int | None = None
    phase_ns: dict[str, int] = field(default_factory=dict)
    """Nanoseconds in each phase; they add up to the wall time."""

    @property
    def wall_ns(self) -> int:
        """All phases together."""
        return sum(self.phase_ns.values())

    @property
    def train_ns(self) -> int:
        """Warm-up and training together."""
        return self.phase_ns.get("warmup", 0) + self.phase_ns.get("train", 0)


@dataclass(slots=True, kw_only=True)
class Window:
    """Some steps in a row, all of the warm-up or all after it. Times in nanoseconds unless said otherwise."""

    phase: Literal["warmup", "train"]
    start_ns: int
    end_ns: int
    totals: Totals
    """Where the run stands at the window's end."""

    steps: int = 0
    batches: int = 0
    samples: int | None = 0
    """None when a batch was of unknown size."""
    tokens: int | None = 0
    """None when a batch had an unknown number of tokens, or tokens are not counted."""
    busy_ns: int = 0
    """Time of the steps: fetches and bodies, other phases taken out."""
    waits: int = 0
    """Batches whose wait was measured, first batches included."""
    wait_ns: int = 0
    """Host time in fetches, first batches apart."""
    first_wait_ns: int = 0
    """Host time in fetches of first batches."""
    first_busy_ns: int = 0
    """Time of first batches, their bodies included."""
    first_batches: int = 0
    transfer_ns: int | None = None
    """Time of moves to the device; None when none was marked."""
    passes_ns: int = 0
    """Length of the passes over a loader that ended in the window."""
    passes_first_ns: int = 0
    """Their first batches."""
    step_ms: Distribution = field(default_factory=Distribution)
    wait_ms: Distribution = field(default_factory=Distribution)
    """Waits of single batches, first batches apart."""
    longest_wait_ns: int = 0
    """First batches included."""
    device_seen: int = 0
    """Batches that the device timed, or of which it is known that it did not."""
    device_batches: int = 0
    """Batches whose exposed wait the device timed: no first batches."""
    device_ns: int = 0
    """Time of those on the device, from fetch to body's end, phases taken out."""
    exposed_ns: int = 0
    """Time in which the device had nothing to do for want of data."""
    copied_batches: int = 0
    copied_ns: int = 0
    """Time of copies on the device."""
    ideal_ns: float = 0.0
    """What the steps whose FLOP are known would have taken at the devices' peak."""
    ideal_of_ns: int = 0
    """Time of those steps."""
    readings: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What was read of the machine in the window: by catalogue key, value times seconds, and seconds."""
    cost_ns: int = 0
    probes: int = 0

    def read(self, values: Mapping[str, float]) -> None:
        """Take in what was read of the machine for this window."""
        seconds = max(1, self.end_ns - self.start_ns) * 1e-9
        self.readings = {key: (value * seconds, seconds) for key, value in values.items()}

    def reading_values(self) -> dict[str, float]:
        """Return what was read, means weighted by time."""
        return {key: total / seconds for key, (total, seconds) in self.readings.items()}

    def merge(self, later: Window) -> None:
        """Go on with the steps of `later`, which follows this one and is of the same phase."""
        self.end_ns = later.end_ns
        self.totals = later.totals
        self.steps += later.steps
        self.batches += later.batches
        self.samples = _sum(self.samples, later.samples)
        self.tokens = _sum(self.tokens, later.tokens)
        self.busy_ns += later.busy_ns
        self.waits += later.waits
        self.wait_ns += later.wait_ns
        self.first_wait_ns += later.first_wait_ns
        self.first_busy_ns += later.first_busy_ns
        self.first_batches += later.first_batches
        if later.transfer_ns is not None:
            self.transfer_ns = (self.transfer_ns or 0) + later.transfer_ns
        self.passes_ns += later.passes_ns
        self.passes_first_ns += later.passes_first_ns
        self.step_ms.merge(later.step_ms)
        self.wait_ms.merge(later.wait_ms)
        self.longest_wait_ns = max(self.longest_wait_ns, later.longest_wait_ns)
        self.device_seen += later.device_seen
        self.device_batches += later.device_batches
        self.device_ns += later.device_ns
        self.exposed_ns += later.exposed_ns
        self.copied_batches += later.copied_batches
        self.copied_ns += later.copied_ns
        self.ideal_ns += later.ideal_ns
        self.ideal_of_ns += later.ideal_of_ns
        for key, (total, seconds) in later.readings.items():
            before = (0.0, 0.0) if key.endswith(_CUMULATIVE) else self.readings.get(key, (0.0, 0.0))
            both = (before[0] + total, before[1] + seconds)
            pick = _PICK.get(key.rpartition("/")[2])
            if pick is not None and before[1]:
                both = (pick(before[0] / before[1], total / seconds) * both[1], both[1])
            self.readings[key] = both
        self.cost_ns += later.cost_ns
        self.probes += later.probes


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
