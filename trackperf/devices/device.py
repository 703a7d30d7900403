"""All that is read of one GPU: polled between windows, put together at the end of each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from trackperf.devices.buffered import Buffered, StampClock
from trackperf.devices.counters import Counter, CounterFacts
from trackperf.devices.gpm import GPM_KEYS, GpmMeter
from trackperf.devices.meters import EnergyMeter, ThermalMeter
from trackperf.devices.tracks import Gauge, Spread, mean, spread, without

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackperf.devices.facts import Identity
    from trackperf.devices.mapping import Found
    from trackperf.devices.nvml import Handle, Nvml

__all__ = ["DETAILS", "DeviceMeter"]

DETAILS: Final = (
    "util_pct",
    "sm_active_pct",
    "sm_occupancy_pct",
    "tensor_active_pct",
    "mem_bw_gb_s",
    "mem_busy_pct",
    "mem_used_pct",
    "mem_used_gib",
    "temp_c",
    "thermal_throttle_pct",
    "power_w",
    "energy_j",
    "sm_clock_mhz",
    "mem_clock_mhz",
    "pcie_rx_mb_s",
    "pcie_tx_mb_s",
)
"""What the driver tells of a device, in the order of the catalogue."""

_GIB: Final = 2**30
_SLOW_NS: Final = 950_000_000
_DRAIN_NS: Final = 4_000_000_000
_MOST: Final = {"temp_c": 200.0, "power_w": 20_000.0, "sm_clock_mhz": 20_000.0, "mem_clock_mhz": 50_000.0}
_SLICE: Final = "MIG: the driver does not report it for a slice"
_TENANTS: Final = "MIG: what the driver reports is of all slices of the GPU"
_SHARED: Final = "the driver gives 0 for memory that the GPU shares with the machine"
_OF_TENANTS: Final = ("util_pct", "mem_busy_pct", "mem_used_gib", "power_w", "energy_j")
_NOT_OF_SLICES: Final = ("temp_c", "power_w", "energy_j", "sm_clock_mhz", "mem_clock_mhz")

HALF: Final = 0.5
"""Share of a window that must be known for a mean of what changes fast."""

SOME: Final = 0.1
"""The same for what changes slowly."""


class DeviceMeter:
    """The readings of one device. Of one thread."""

    def __init__(
        self,
        nvml: Nvml,
        found: Found,
        identity: Identity,
        label: str,
        clocks: Sequence[Callable[[], int]],
    ) -> None:
        """
        Args:
            nvml: the session.

            found: the device.

            identity: what never changes about it.

            label: what messages call it.

            clocks: those that the driver's stamps may be of.
        """
        self.identity = identity
        self.found = found
        self.util_spread: Spread | None = None
        """Between what utilisation lay in the window that was read last, where that has its mean."""
        self._nvml = nvml
        names = ("util_pct", "mem_used_gib", "energy_j", *_MOST)
        self._counters = {name: Counter(name, label) for name in names}
        self._mem_busy = Counter("mem_busy_pct", label)
        self._gauges = {name: Gauge() for name in ("util_pct", "mem_busy_pct", "mem_used_gib", *_MOST)}
        clock = StampClock(clocks)
        self._util = Buffered(Counter("samples", label, quiet=True), clock, self._counters["util_pct"])
        self._busy = Buffered(Counter("samples", label, quiet=True), clock, self._mem_busy)
        self._thermal = ThermalMeter(label)
        self._gpm = GpmMeter(nvml, label, is_slice=found.is_slice)
        self._energy = EnergyMeter(self._counters["energy_j"])
        self._memory_total = 0.0
        self._memory_was_busy = False
        self._slow_ns: int | None = None
        self._drained_ns: int | None = None
        self._leave_out()

    @property
    def wants_often(self) -> bool:
        """Whether what is polled is all there is, so that polling more often tells more."""
        polls_util = self._counters["util_pct"].state == "ok" and not self._util.delivers
        return polls_util or self._thermal.polls_bits

    def poll(self, now_ns: int, *, window_ends: bool = False) -> None:
        """
        Read what is due.

        Args:
            now_ns: monotonic time now.

            window_ends: whether a window has just closed, so that everything is.

        Raises:
            DriverError: the device as a whole does not answer.
        """
        handle = self.found.handle
        if window_ends or self._drained_ns is None or now_ns - self._drained_ns >= _DRAIN_NS:
            self._drained_ns = now_ns
            self._drain(now_ns, handle)
        self._poll_rates(now_ns, handle)
        slow = window_ends or self._slow_ns is None or now_ns - self._slow_ns >= _SLOW_NS
        if slow or self._thermal.polls_bits:
            self._thermal.poll(now_ns, self._nvml, handle)
        if slow:
            self._slow_ns = now_ns
            self._poll_slow(now_ns, handle)
        self._gpm.advance(now_ns, handle, window_ends=window_ends)
        if self._energy.total_j is None:
            self._read_energy(now_ns, handle, None)

    def read(self, now_ns: int, begin_ns: int, end_ns: int) -> dict[str, float]:
        """
        Return the readings of a window, after a poll at its end; `mem_bw_pct` is among them.

        Args:
            now_ns: monotonic time now.

            begin_ns: start of the window.

            end_ns: its end.

        Raises:
            DriverError: the device as a whole does not answer.
        """
        window = (begin_ns, end_ns)
        util, self.util_spread = self._share(self._util, "util_pct", window)
        values = {
            "util_pct": util,
            "mem_busy_pct": self._share(self._busy, "mem_busy_pct", window)[0],
            "thermal_throttle_pct": self._thermal.take(*window, SOME),
        }
        for name in ("mem_used_gib", *_MOST):
            values[name] = self._gauges[name].track.mean(*window, SOME)
        self._memory_was_busy = self._memory_was_busy or bool(values["mem_busy_pct"])
        if self._shares_memory:
            values["mem_busy_pct"] = None
        used = values["mem_used_gib"]
        if used is not None and self._memory_total > 0:
            values["mem_used_pct"] = 100 * used * _GIB / self._memory_total
        if self._read_energy(now_ns, self.found.handle, values["power_w"]):
            values["energy_j"] = self._energy.total_j
        found = {name: value for name, value in values.items() if value is not None}
        found.update(self._gpm.take(*window, HALF))
        peak = self.identity.peak.gb_s
        if peak is not None and "mem_bw_pct" in found:
            found["mem_bw_gb_s"] = found["mem_bw_pct"] / 100 * peak
        return found

    def facts(self) -> dict[str, CounterFacts]:
        """Return how it is with each series."""
        facts = {name: counter.facts for name, counter in self._counters.items()}
        if self._util.delivers:
            facts["util_pct"] = CounterFacts(state="ok", rejected=facts["util_pct"].rejected)
        busy = facts["util_pct"]
        shared = CounterFacts(state="unsupported", reason=_SHARED)
        facts["mem_busy_pct"] = (
            shared
            if self._shares_memory
            else CounterFacts(state=busy.state, reason=busy.reason, rejected=self._mem_busy.rejected)
        )
        facts["mem_used_pct"] = facts["mem_used_gib"]
        facts["thermal_throttle_pct"] = self._thermal.facts
        whole = self._gpm.counter.facts
        for key in GPM_KEYS:
            facts[key] = whole if whole.state != "ok" else self._gpm.metrics[key].facts
        facts["mem_bw_gb_s"] = facts["mem_bw_pct"]
        if self.identity.peak.gb_s is None and facts["mem_bw_pct"].state == "ok":
            facts["mem_bw_gb_s"] = CounterFacts(state="unsupported", reason=self.identity.peak.source)
        return facts

    @property
    def has_gpm(self) -> bool:
        """Whether the newer GPUs' counters answer."""
        return self._gpm.counter.state == "ok"

    def lost(self, *, with_library: bool) -> None:
        """
        Note that the device does not answer: what comes later does not go with what was before.

        Args:
            with_library: whether the driver's library was shut down.
        """
        for gauge in self._gauges.values():
            gauge.miss()
        self._thermal.lost()
        self._gpm.lost(with_library=with_library)

    def close(self) -> None:
        """Give back what the driver's library holds for it."""
        self._gpm.close()

    @property
    def _shares_memory(self) -> bool:
        """Whether a memory that is never busy is one that the driver does not watch."""
        whole = not self.found.is_slice and not self.found.is_divided
        return whole and self._counters["mem_used_gib"].state == "unsupported" and not self._memory_was_busy

    def _leave_out(self) -> None:
        """Do not ask a slice, or the GPU that it is of, for what would be that of all its tenants."""
        if self.found.is_slice:
            for name in _NOT_OF_SLICES:
                self._counters[name].give_up(_SLICE)
            self._counters["util_pct"].give_up(_SLICE)
            self._thermal.give_up(_SLICE)
        elif self.found.is_divided:
            for name in _OF_TENANTS:
                if name in self._counters:
                    self._counters[name].give_up(_TENANTS)
            self._gpm.counter.give_up(_TENANTS)

    def _poll_rates(self, now_ns: int, handle: Handle) -> None:
        counter, util, busy = (
            self._counters["util_pct"],
            self._gauges["util_pct"],
            self._gauges["mem_busy_pct"],
        )
        counter.quiet = self._util.delivers
        rates = counter.ask(now_ns, lambda: self._nvml.rates(handle))
        if rates is None:
            if not self._util.delivers:
                counter.say()
            util.miss()
            busy.miss()
            return
        for gauge, blamed, value in ((util, counter, rates[0]), (busy, self._mem_busy, rates[1])):
            if 0 <= value <= 100:
                gauge.see(now_ns, value)
            else:
                blamed.reject(value)
                gauge.miss()

    def _poll_slow(self, now_ns: int, handle: Handle) -> None:
        for name, most in _MOST.items():
            ask = getattr(self._nvml, "temperature_c" if name == "temp_c" else name)
            self._see(name, now_ns, self._counters[name].ask(now_ns, partial(ask, handle)), most)
        memory = self._counters["mem_used_gib"].ask(now_ns, lambda: self._nvml.memory(handle))
        if memory is not None:
            self._memory_total = memory[1]
        self._see("mem_used_gib", now_ns, None if memory is None else memory[0] / _GIB, 1e6)

    def _see(self, name: str, now_ns: int, value: float | None, most: float) -> None:
        if value is not None and value > most:
            self._counters[name].reject(value)
            value = None
        if value is None:
            self._gauges[name].miss()
        else:
            self._gauges[name].see(now_ns, value)

    def _drain(self, now_ns: int, handle: Handle) -> None:
        if self.found.is_slice or self.found.is_divided:
            return
        for buffer, memory in ((self._util, False), (self._busy, True)):
            buffer.drain(now_ns, partial(self._nvml.samples, handle, memory))

    def _read_energy(self, now_ns: int, handle: Handle, mean_w: float | None) -> bool:
        reading = self._energy.counter.ask(now_ns, lambda: self._nvml.energy_j(handle))
        if reading is None:
            return False
        self._energy.see(now_ns, reading, mean_w)
        return True

    def _share(
        self, buffer: Buffered, name: str, window: tuple[int, int]
    ) -> tuple[float | None, Spread | None]:
        """Return a share of time: from the driver's samples, and where those have holes from polls."""
        sampled = buffer.track.take(*window)
        polled = without(self._gauges[name].track.take(*window), sampled)
        spans = sorted(sampled + polled)
        return mean(spans, window[1] - window[0], HALF), spread(spans)
