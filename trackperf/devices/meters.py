"""Energy and heat: counters that only ever grow, until the driver is loaded anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trackperf.devices.counters import Counter, CounterFacts
from trackperf.devices.tracks import Gauge, Track

if TYPE_CHECKING:
    from trackperf.devices.nvml import Handle, Nvml

__all__ = ["EnergyMeter", "ThermalMeter"]

_CHECK_S: Final = 30.0
_APART: Final = 0.2
_MOST_W: Final = 20_000.0
_THERMAL_BITS: Final = 0x60
_MOST_SHARE: Final = 1.1


class EnergyMeter:
    """Joules of one device since it was first asked, and whether they go with its power."""

    def __init__(self, counter: Counter) -> None:
        """
        Args:
            counter: how it is with the energy counter.
        """
        self.counter = counter
        self.total_j: float | None = None
        self._last = (0, 0.0)
        self._odd: tuple[int, float] | None = None
        self._counted_j = self._expected_j = self._checked_s = 0.0

    def see(self, now_ns: int, reading_j: float, mean_w: float | None = None) -> None:
        """
        Take a reading of the counter.

        Args:
            now_ns: monotonic time.

            reading_j: the counter.

            mean_w: mean power since the last reading, if it is known.
        """
        if self.total_j is None:
            self.total_j, self._last = 0.0, (now_ns, reading_j)
            return
        elapsed_s = (now_ns - self._last[0]) * 1e-9
        used_j = self._used(now_ns, reading_j)
        if used_j is None:
            self.counter.reject(reading_j)
            self._odd = (now_ns, reading_j)
            return
        self.total_j += used_j
        self._last, odd, self._odd = (now_ns, reading_j), self._odd, None
        if mean_w is not None and odd is None:
            self._check(used_j, mean_w * elapsed_s, elapsed_s)

    def _used(self, now_ns: int, reading_j: float) -> float | None:
        """Return what was used since the last reading, or since an odd one that this one goes with."""
        for before in (self._last, self._odd):
            if before is not None and 0 <= reading_j - before[1] <= _most_j(now_ns - before[0]):
                return reading_j - before[1]
        # A counter that went back was reset with the driver, and has counted from 0 since.
        went_back = reading_j < self._last[1] and reading_j <= _most_j(now_ns - self._last[0])
        return reading_j if went_back else None

    def _check(self, counted_j: float, expected_j: float, elapsed_s: float) -> None:
        """Compare the counter with mean power, over so long that the rhythm of either does not matter."""
        self._counted_j += counted_j
        self._expected_j += expected_j
        self._checked_s += elapsed_s
        if self._checked_s < _CHECK_S:
            return
        apart = self._counted_j / self._expected_j - 1 if self._expected_j > 0 else 0.0
        if abs(apart) > _APART:
            self.counter.doubt(f"the counter says {100 * apart:+.0f} % against the mean power")
        self._counted_j = self._expected_j = self._checked_s = 0.0


class ThermalMeter:
    """
    Share of time in which heat held the clocks of one device down.

    From the driver's two counters of that time where it has them, else from bits of the moment, polled.
    """

    def __init__(self, device: str) -> None:
        """
        Args:
            device: what messages call it.
        """
        self.fields = Counter("thermal slowdown", device, quiet=True)
        self.bits = Counter("thermal slowdown", device, quiet=True)
        self._counted = Track()
        self._polled = Gauge()
        self._last: tuple[int, tuple[int, int]] | None = None

    @property
    def polls_bits(self) -> bool:
        """Whether all there is are bits of the moment, so that it is worth to look often."""
        return self.fields.state != "ok" and self.bits.state == "ok"

    @property
    def facts(self) -> CounterFacts:
        """How it is with either of them."""
        return next((one.facts for one in (self.fields, self.bits) if one.state == "ok"), self._blamed.facts)

    @property
    def _blamed(self) -> Counter:
        """Where neither answers, the one that may do so again."""
        return self.fields if self.fields.state in {"denied", "transient"} else self.bits

    def give_up(self, reason: str) -> None:
        """Do not ask for it at all."""
        self.fields.give_up(reason)
        self.bits.give_up(reason)
        self.bits.say()

    def poll(self, now_ns: int, nvml: Nvml, handle: Handle) -> None:
        """Read the counters, or the bits."""
        times = self.fields.ask(now_ns, lambda: nvml.thermal_ns(handle))
        if times is not None:
            self._count(now_ns, times)
            self._polled.miss()
            return
        self._last = None
        reasons = self.bits.ask(now_ns, lambda: nvml.clock_reasons(handle))
        if reasons is None:
            self._polled.miss()
            self._blamed.say()
        else:
            self._polled.see(now_ns, 100.0 if reasons & _THERMAL_BITS else 0.0)

    def take(self, begin_ns: int, end_ns: int, least: float) -> float | None:
        """Return the share over a window, in %."""
        polled = self._polled.track.mean(begin_ns, end_ns, least)
        counted = self._counted.mean(begin_ns, end_ns, least)
        return polled if counted is None else counted

    def lost(self) -> None:
        """Note that the device went away."""
        self._last = None
        self._polled.miss()

    def _count(self, now_ns: int, times: tuple[int, int]) -> None:
        last, self._last = self._last, (now_ns, times)
        if last is None or now_ns <= last[0]:
            return
        # Both can hold at once: the longer is what is known for sure.
        slowed_ns = max(after - before for after, before in zip(times, last[1], strict=True))
        share = slowed_ns / (now_ns - last[0])
        if min(times) < 0 or share > _MOST_SHARE:
            self.bits.reject(100 * share)
        elif slowed_ns >= 0:  # less than before: the driver was loaded anew
            # The clock and the counter are not read in the same instant.
            self._counted.add(last[0], now_ns, 100.0 * min(share, 1.0))


def _most_j(elapsed_ns: int) -> float:
    """Return more than any GPU can use in a time."""
    return _MOST_W * max(elapsed_ns * 1e-9, 1.0)
