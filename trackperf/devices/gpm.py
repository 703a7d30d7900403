"""
Activity and memory bandwidth from the counters of newer datacenter GPUs (GPM).

A metric is the mean between two samples, so each sample is kept until the next one and every moment is
between two: there is no blind time.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Final

from trackperf.devices.counters import Counter, DriverError
from trackperf.devices.tracks import Track

if TYPE_CHECKING:
    from trackperf.devices.nvml import Handle, Nvml

__all__ = ["GPM_KEYS", "GpmMeter"]

_MIB_PER_MB: Final = 1.048576
_METRICS: Final = {
    "sm_active_pct": (2, 1.0),
    "sm_occupancy_pct": (3, 1.0),
    "tensor_active_pct": (5, 1.0),
    "mem_bw_pct": (10, 1.0),
    "pcie_tx_mb_s": (20, _MIB_PER_MB),
    "pcie_rx_mb_s": (21, _MIB_PER_MB),
}
GPM_KEYS: Final = tuple(_METRICS)
"""What is read this way; `mem_bw_pct` is the share of the theoretical bandwidth."""

_SHORTEST_NS: Final = 200_000_000
_LONGEST_NS: Final = 30_000_000_000
_UNUSABLE_NS: Final = 60_000_000_000
_MOST_PCT: Final = 105.0
"""Shares are of two measured quantities, and may come out a little over 100 under full load."""

_MOST_MB_S: Final = 1e6


class GpmMeter:
    """The counters of one device."""

    def __init__(self, nvml: Nvml, device: str, *, is_slice: bool) -> None:
        """
        Args:
            nvml: the session.

            device: what messages call it.

            is_slice: whether it is a MIG slice.
        """
        self.counter = Counter("GPM", device)
        self.metrics = {key: Counter(key, device) for key in _METRICS}
        self._nvml = nvml
        self._is_slice = is_slice
        self._tracks = {key: Track() for key in _METRICS}
        self._asked = False
        self._kept: Any = None
        self._spare: Any = None
        self._taken_ns: int | None = None

    def advance(self, now_ns: int, handle: Handle, *, window_ends: bool) -> None:
        """
        Take a sample, if it is time for one, and the metrics since the last.

        Args:
            now_ns: monotonic time now.

            handle: the device.

            window_ends: whether a window has just closed; otherwise a sample is only taken where there is
                none, or the last one is old.
        """
        if not self._asked and self.counter.due(now_ns):
            self._ask(now_ns, handle)
        if not self._asked or not self.counter.due(now_ns):
            return
        since_ns = None if self._taken_ns is None else now_ns - self._taken_ns
        if since_ns is not None and since_ns < (_SHORTEST_NS if window_ends else _LONGEST_NS):
            return
        if self.counter.ask(now_ns, lambda: self._take(handle)) is None:
            self._taken_ns = None  # the time that cannot be read now will not be told of later
            return
        if self._taken_ns is not None and not self._difference(self._taken_ns, now_ns):
            return
        self._kept, self._spare, self._taken_ns = self._spare, self._kept, now_ns

    def take(self, begin_ns: int, end_ns: int, least: float) -> dict[str, float]:
        """Return the means over a window of those metrics that are known for a share of it."""
        means = {key: track.mean(begin_ns, end_ns, least) for key, track in self._tracks.items()}
        return {key: value for key, value in means.items() if value is not None}

    def lost(self, *, with_library: bool) -> None:
        """
        Note that the device went away: what was sampled before does not go with what comes after.

        Args:
            with_library: whether the driver's library was shut down, and the samples' room with it.
        """
        self._taken_ns = None
        if with_library:
            self._kept = self._spare = None

    def close(self) -> None:
        """Give the samples' room back."""
        for sample in (self._kept, self._spare):
            if sample is not None:
                with contextlib.suppress(DriverError):
                    self._nvml.gpm_free(sample)
        self._kept = self._spare = self._taken_ns = None

    def _ask(self, now_ns: int, handle: Handle) -> None:
        has = self.counter.ask(now_ns, lambda: self._nvml.has_gpm(handle))
        if has is False:
            self.counter.give_up("GPM needs Hopper or newer")
        self._asked = bool(has)

    def _take(self, handle: Handle) -> bool:
        if self._spare is None:
            self._spare = self._nvml.gpm_alloc()
        if self._kept is None:
            self._kept = self._nvml.gpm_alloc()
        self._nvml.gpm_take(handle, self._spare, is_slice=self._is_slice)
        return True

    def _difference(self, begin_ns: int, now_ns: int) -> bool:
        """Take the metrics since the kept sample; return whether that one has served."""
        wanted = [key for key, counter in self.metrics.items() if counter.due(now_ns)]
        ids = [_METRICS[key][0] for key in wanted]
        try:
            found = self._nvml.gpm_metrics(self._kept, self._spare, ids)
        except DriverError as error:
            if error.of_device:
                raise
            self.counter.failed(error, now_ns)
            self._taken_ns = None
            return False
        used = [self._note(key, value, begin_ns, now_ns) for key, value in zip(wanted, found, strict=True)]
        # Nothing but "not a number" means that the counters were not refreshed in between.
        return any(used) or now_ns - begin_ns > _UNUSABLE_NS

    def _note(self, key: str, found: float | DriverError, begin_ns: int, now_ns: int) -> bool:
        """Take one metric; return whether it says anything."""
        counter = self.metrics[key]
        if isinstance(found, DriverError):
            counter.failed(found, now_ns)
            return True
        counter.answered()
        if math.isnan(found):
            return False
        value = found * _METRICS[key][1]
        if not 0 <= value <= (_MOST_PCT if key.endswith("_pct") else _MOST_MB_S):
            counter.reject(value)
            return True
        self._tracks[key].add(begin_ns, now_ns, value)
        return True
