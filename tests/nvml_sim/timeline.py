"""What a device does over time: values that hold until the next point, and their means and integrals."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["At", "duty_cycle", "integral", "mean", "value_at"]

_WORDS = {
    "util_pct": "util",
    "mem_busy_pct": "mem",
    "sm_active_pct": "sm",
    "sm_occupancy_pct": "occ",
    "tensor_active_pct": "tensor",
    "dram_pct": "dram",
    "power_w": "power",
    "temp_c": "temp",
    "used_bytes": "used",
    "reasons": "reasons",
    "sm_clock_mhz": "sm_mhz",
    "mem_clock_mhz": "mem_mhz",
    "pcie_tx_bytes_per_s": "tx",
    "pcie_rx_bytes_per_s": "rx",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """
    What changes at a moment; what is not given stays as it was, and is 0 before it was first given.

    All readings derive from these: means, samples, counters, differences.
    """

    s: float
    """Seconds since the start of the scenario."""

    util_pct: float | None = None
    """Share of time in which a kernel runs."""

    mem_busy_pct: float | None = None
    """Share of time in which memory is read or written."""

    sm_active_pct: float | None = None
    sm_occupancy_pct: float | None = None
    tensor_active_pct: float | None = None

    dram_pct: float | None = None
    """Bandwidth of the memory, of its theoretical maximum."""

    power_w: float | None = None
    temp_c: float | None = None

    used_bytes: float | None = None
    """Memory allocated on the device, without what the driver keeps for itself."""

    reasons: float | None = None
    """Bits that tell why clocks are low: 0x20 and 0x40 are thermal."""

    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None

    def given(self) -> dict[str, float]:
        """Return the values that change, by field name."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self) if field.name != "s")
        return {name: value for name, value in values if value is not None}

    def line(self, device: str) -> str:
        """Return the line of a scenario that says this of a device."""
        words = " ".join(f"{_WORDS[name]}={float(value)!r}" for name, value in self.given().items())
        return f"at {self.s!r} {device} {words}"


def duty_cycle(busy: At, idle: At, *, busy_s: float, idle_s: float, until_s: float) -> tuple[At, ...]:
    """
    Return points that alternate between two states, from the moment of the first one on.

    Args:
        busy: state that comes first; its time is the start.

        idle: state that follows; its time does not matter.

        busy_s: how long each stretch of the first lasts.

        idle_s: how long each stretch of the second lasts.

        until_s: no period begins at or after this moment.
    """
    points: list[At] = []
    period = 0
    while (start := busy.s + period * (busy_s + idle_s)) < until_s:
        points += [replace(busy, s=start), replace(idle, s=start + busy_s)]
        period += 1
    return tuple(points)


def _stretches(points: Sequence[At], name: str) -> list[tuple[float, float]]:
    """Return (start, value) of a series, in order."""
    ordered = sorted(points, key=lambda point: point.s)
    return [(point.s, point.given()[name]) for point in ordered if name in point.given()]


def value_at(points: Sequence[At], name: str, s: float) -> float:
    """Return a value at a moment."""
    before = [value for start, value in _stretches(points, name) if start <= s]
    return before[-1] if before else 0.0


def integral(points: Sequence[At], name: str, start_s: float, end_s: float) -> float:
    """Return the sum of a value times seconds between two moments."""
    stretches = _stretches(points, name)
    ends = [start for start, _ in stretches[1:]] + [end_s]
    return sum(
        value * max(0.0, min(end, end_s) - max(start, start_s))
        for (start, value), end in zip(stretches, ends, strict=True)
    )


def mean(points: Sequence[At], name: str, start_s: float, end_s: float) -> float:
    """Return the mean of a value between two moments."""
    return integral(points, name, start_s, end_s) / (end_s - start_s)
