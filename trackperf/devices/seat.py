"""One GPU of the run, whether or not the driver gives it to us now."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trackperf.devices import mapping
from trackperf.devices.counters import Code, Counter, DriverError
from trackperf.devices.device import DETAILS, DeviceMeter
from trackperf.devices.facts import DeviceFacts, identify
from trackperf.devices.mapping import TorchDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackperf.devices.nvml import Nvml
    from trackperf.devices.tracks import Spread

__all__ = ["GPU_DETAILS", "Seat", "Target", "identity_of"]

_TORCH: Final = ("torch_reserved_gib", "torch_peak_gib")

GPU_DETAILS: Final = (*DETAILS[:8], *_TORCH, *DETAILS[8:])
"""Series below `perf_gpu/`, `perf_gpu0/` and so on, in the order of the catalogue."""

Target = TorchDevice | str | int
"""A GPU as it is asked for: torch's, a UUID, or an index of the driver's."""

_log: Final = logging.getLogger("trackperf")
_GIB: Final = 2**30


class Seat:
    """A place among the run's GPUs, and the device that sits there."""

    def __init__(
        self,
        index: int,
        target: Target,
        nvml: Nvml,
        stamp_clocks: Sequence[Callable[[], int]],
        *,
        given: bool,
    ) -> None:
        """
        Args:
            index: its number in the run.

            target: what to look for.

            nvml: the session.

            stamp_clocks: clocks that the driver's stamps may be of.

            given: whether the user has named it.
        """
        self._given = given
        self.index = index
        self.target = target
        self.meter: DeviceMeter | None = None
        self._nvml = nvml
        self._stamp_clocks = stamp_clocks
        told = f"cuda:{target.index}" if isinstance(target, TorchDevice) else str(target)
        self._label = f"GPU {index} ({told})"
        self._gate = Counter(self._label, "")

    def poll(self, now_ns: int, *, window_ends: bool) -> bool:
        """
        Read what is due; return whether the device answered.

        Args:
            now_ns: monotonic time now.

            window_ends: whether a window has just closed.

        Raises:
            DriverError: the driver's library was shut down.
        """
        if not self._gate.due(now_ns):
            return False
        try:
            if self._gate.state != "ok" or self.meter is None:
                self._sit()
            if self.meter is not None:
                self.meter.poll(now_ns, window_ends=window_ends)
        except DriverError as error:
            self.lost(error, now_ns)
            return False
        self._gate.answered()
        return True

    def read(self, now_ns: int, begin_ns: int, end_ns: int) -> dict[str, float]:
        """
        Return the readings of a window that has just closed, by short name.

        Args:
            now_ns: monotonic time now.

            begin_ns: start of the window.

            end_ns: its end.

        Raises:
            DriverError: the driver's library was shut down.
        """
        if not self.poll(now_ns, window_ends=True) or self.meter is None:
            return {}
        try:
            values = self.meter.read(now_ns, begin_ns, end_ns)
        except DriverError as error:
            self.lost(error, now_ns)
            return {}
        sizes = self._allocator()
        if sizes is not None:
            values.update(zip(_TORCH, (size / _GIB for size in sizes), strict=True))
        return values

    @property
    def util_spread(self) -> Spread | None:
        """Between what utilisation lay in the window that was read last, where that has its mean."""
        return None if self.meter is None else self.meter.util_spread

    def lost(self, error: DriverError, now_ns: int) -> None:
        """
        Note that the device does not answer.

        Raises:
            DriverError: the same again, where it is the library that is gone, unless this seat is told of it.
        """
        gone = error.code == Code.UNINITIALIZED
        if self.meter is not None:
            self.meter.lost(with_library=gone)
        if gone:
            raise error
        self._gate.failed(error, now_ns)

    def library_gone(self) -> None:
        """Note that the driver's library was shut down: the handle does not hold any more."""
        if self.meter is not None:
            self.meter.lost(with_library=True)
        self._gate.state = "unasked"

    def close(self) -> None:
        """Give back what the driver's library holds for it."""
        if self.meter is not None:
            self.meter.close()

    def reasons(self) -> dict[str, str]:
        """Return why it lacks what it lacks, by short name."""
        if self.meter is None or self._gate.state != "ok":
            reason = self._gate.reason or "the device was not asked yet"
            return dict.fromkeys((*GPU_DETAILS, "mem_bw_pct"), reason)
        facts = self.meter.facts()
        reasons = {name: one.reason for name, one in facts.items() if one.state not in {"ok", "unasked"}}
        if self._allocator() is None:
            reasons.update(dict.fromkeys(_TORCH, "torch does not tell what it holds of this device"))
        return reasons

    def describe(self, driver: str) -> DeviceFacts:
        """
        Return what there is to say of it.

        Args:
            driver: the driver's version.
        """
        state = self._gate.facts
        if self.meter is None:
            named = self.target.name if isinstance(self.target, TorchDevice) else ""
            return DeviceFacts(index=self.index, name=named or self._label, state=state, driver=driver)
        identity, found = self.meter.identity, self.meter.found
        return DeviceFacts(
            index=self.index,
            name=identity.name,
            uuid=found.uuid,
            match=found.match,
            state=state,
            compute_capability=identity.compute_capability,
            driver=driver,
            memory_gib=identity.memory_gib,
            peak_bandwidth_gb_s=identity.peak.gb_s,
            peak_source=identity.peak.source,
            datasheet_gb_s=identity.peak.datasheet_gb_s,
            peak_remark=identity.peak.remark,
            gpm=self.meter.has_gpm,
            mig=found.is_slice or found.is_divided,
            counters=self.meter.facts(),
        )

    def _sit(self) -> None:
        """Find the device, or find it again: a handle may not outlive what happened to it."""
        found = mapping.locate(self._nvml, self.target, given=self._given)
        if self.meter is not None:
            self.meter.found = replace(found, match=self.meter.found.match)
            return
        torch = self.target if isinstance(self.target, TorchDevice) else None
        identity = identify(self._nvml, found, torch)
        self._label = self._gate.name = f"GPU {self.index} ({identity.name}, {found.uuid})"
        self.meter = DeviceMeter(self._nvml, found, identity, self._label, self._stamp_clocks)
        if identity.peak.remark:
            _log.warning("trackperf: peak memory bandwidth of %s: %s", self._label, identity.peak.remark)

    def _allocator(self) -> tuple[float, float] | None:
        """Return what torch says of the memory that it holds there, if that device is known to it."""
        if isinstance(self.target, TorchDevice):
            return mapping.allocator_bytes(self.target.index)
        if self.meter is None:
            return None
        uuid = self.meter.found.uuid.removeprefix("GPU-").removeprefix("MIG-")
        mine = next((one for one in mapping.torch_devices() if one.uuid == uuid), None)
        return None if mine is None else mapping.allocator_bytes(mine.index)


def identity_of(target: Target) -> str:
    """Return what tells one device from another, whatever else becomes known of it."""
    return f"cuda:{target.index}" if isinstance(target, TorchDevice) else repr(target)
