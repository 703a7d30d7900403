"""The run's GPUs together: found, polled, read at the end of each window, and described."""

from __future__ import annotations

import itertools
import logging
import os
import time
from typing import TYPE_CHECKING, Final

from trackperf.devices import mapping
from trackperf.devices.buffered import stamp_clocks
from trackperf.devices.counters import Code, Counter, DriverError
from trackperf.devices.mapping import TorchDevice, own_devices
from trackperf.devices.nvml import Nvml
from trackperf.devices.seat import GPU_DETAILS, Seat, Target, identity_of
from trackperf.devices.visible import visible_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackperf.devices.facts import DeviceFacts

__all__ = ["GPU_HEADLINE", "GPU_KEYS", "GPU_SPREAD", "Sampler"]

GPU_HEADLINE: Final = {
    "perf/gpu_util_pct": "util_pct",
    "perf/mem_bw_pct": "mem_bw_pct",
    "perf/mem_busy_pct": "mem_busy_pct",
}
"""Headline series, and what of each device they are the mean of."""

GPU_SPREAD: Final = ("perf_gpu/util_samples", "perf_gpu/util_min_pct", "perf_gpu/util_max_pct")
"""What the mean of utilisation is of, over all devices: how many values, the least, the most."""

GPU_KEYS: Final = {
    **GPU_HEADLINE,
    **{f"perf_gpu/{name}": name for name in GPU_DETAILS},
    **dict.fromkeys(GPU_SPREAD, "util_pct"),
}
"""Every series, but those of single devices."""

_log: Final = logging.getLogger("trackperf")
_PERIOD_S: Final = 1.0
_OFTEN_S: Final = 0.25
_SETTLED: Final = 3
_LOOK_AGAIN: Final = 16


class Sampler:
    """
    Readings of all GPUs of a run. Of one thread.

    Polls may come when they come: every value is weighted by the time that it is of.
    """

    def __init__(
        self,
        devices: Sequence[str | int] | None = None,
        *,
        rank_devices: Callable[[], Sequence[TorchDevice] | None] = own_devices,
        clock: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Args:
            devices: UUIDs or the driver's indices; the run's own when not given.

            rank_devices: returns the run's own; None where that is all that `CUDA_VISIBLE_DEVICES` leaves.

            clock: monotonic nanoseconds.

            wall: nanoseconds since the epoch.
        """
        self._given = None if devices is None else list(devices)
        self._rank_devices = rank_devices
        self._clock = clock
        self._stamp_clocks = stamp_clocks(wall)
        self._nvml = Nvml()
        self._session = Counter("the NVIDIA driver", "")
        self._open = False
        self._driver = ""
        self._seats: list[Seat] = []
        self._same = self._looks = 0
        self._none = ""

    @property
    def period_s(self) -> float:
        """How long to wait until the next poll."""
        often = any(seat.meter is not None and seat.meter.wants_often for seat in self._seats)
        return _OFTEN_S if often else _PERIOD_S

    @property
    def hopeless(self) -> bool:
        """Whether there is no driver to read from, and none will come."""
        return self._session.state == "unsupported"

    def poll(self) -> None:
        """Read what is due."""
        if not self._begin():
            return
        if not self._seats:
            self._look()
        try:
            for seat in self._seats:
                seat.poll(self._clock(), window_ends=False)
        except DriverError as error:
            self._gone(error)

    def read(self, begin_ns: int, end_ns: int) -> dict[str, float]:
        """
        Return the series of a window that has just closed; what was not measured is not in it.

        Args:
            begin_ns: start of the window.

            end_ns: its end.
        """
        if end_ns <= begin_ns or not self._begin():
            return {}
        self._look()
        try:
            found = {seat.index: seat.read(self._clock(), begin_ns, end_ns) for seat in self._seats}
        except DriverError as error:
            self._gone(error)
            return {}
        series: dict[str, float] = {}
        for key, name in GPU_HEADLINE.items():
            series.update(_mean(key, name, found))
        for name in GPU_DETAILS:
            series.update(_mean(f"perf_gpu/{name}", name, found))
            for index, values in found.items():
                if name in values:
                    series[f"perf_gpu{index}/{name}"] = values[name]
        return series | self._util_spread(found)

    def _util_spread(self, found: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
        """Return between what the utilisation lay whose mean a window has."""
        known = [seat.util_spread for seat in self._seats if "util_pct" in found[seat.index]]
        spreads = [one for one in known if one is not None]
        if not spreads:
            return {}
        counted = sum(one.samples for one in spreads)
        extremes = (min(one.least for one in spreads), max(one.most for one in spreads))
        return dict(zip(GPU_SPREAD, (float(counted), *extremes), strict=True))

    def absent(self) -> dict[str, str]:
        """
        Return why a series is not measured, by key.

        Where all devices lack it, that is the key of their mean; where some do, theirs.
        """
        if not self._open or not self._seats:
            reason = self._none if self._open else self._session.reason
            return dict.fromkeys(GPU_KEYS, reason or "the driver was not asked yet")
        by_seat = {seat.index: seat.reasons() for seat in self._seats}
        reasons: dict[str, str] = {}
        for key, name in GPU_KEYS.items():
            lacking = {index: found[name] for index, found in by_seat.items() if name in found}
            if len(lacking) == len(by_seat):
                reasons[key] = lacking[min(lacking)]
            elif key.startswith("perf_gpu/"):
                reasons.update({f"perf_gpu{index}/{name}": reason for index, reason in lacking.items()})
        return reasons

    def describe(self) -> list[DeviceFacts]:
        """Return what there is to say of each device."""
        return [seat.describe(self._driver) for seat in self._seats]

    def close(self) -> None:
        """Give everything back to the driver's library."""
        for seat in self._seats:
            seat.close()
        self._seats = []
        if self._open:
            self._open = False
            try:
                self._nvml.close()
            except DriverError as error:
                _log.debug("trackperf: the NVIDIA driver's library did not close: %s", error)

    def _begin(self) -> bool:
        """Return whether there is a session with the driver, opening one when it is time to."""
        if self._open:
            return True
        now_ns = self._clock()
        if not self._session.due(now_ns):
            return False
        try:
            self._nvml.open()
        except DriverError as error:
            self._refused(error, now_ns)
            return False
        self._open = True
        self._session.answered()
        try:
            self._driver = self._nvml.driver_version()
        except DriverError as error:
            _log.debug("trackperf: the NVIDIA driver does not tell its version: %s", error)
        return True

    def _refused(self, error: DriverError, now_ns: int) -> None:
        if error.code != Code.LIBRARY_NOT_FOUND:
            self._session.failed(error, now_ns)
            return
        # Nothing is amiss on a machine without a GPU; where one is used or asked for, something is.
        level = logging.WARNING if self._given or mapping.torch_devices() else logging.INFO
        what = "nvidia-ml-py" if error.function == "pynvml" else "NVIDIA driver"
        self._session.give_up(f"no {what} was found ({error.text})", level)

    def _gone(self, error: DriverError) -> None:
        """Note that somebody in this process has shut the library down once too often."""
        self._open = False
        self._session.failed(error, self._clock())
        for seat in self._seats:
            seat.library_gone()

    def _look(self) -> None:
        """Find out which devices are the run's, until that stays the same, and now and then after."""
        self._looks += 1
        settled = self._seats and self._same >= _SETTLED
        if settled and (self._given is not None or self._looks % _LOOK_AGAIN):
            return
        targets = {identity_of(target): target for target in self._targets()}
        # A device that was once the run's stays: its series would end otherwise.
        kept = [seat for seat in self._seats if seat.meter is not None or identity_of(seat.target) in targets]
        known = {identity_of(seat.target) for seat in kept}
        new = [target for key, target in targets.items() if key not in known]
        if len(kept) == len(self._seats) and not new:
            self._same += 1
            return
        self._same = 0
        taken = {seat.index for seat in kept}
        free = (index for index in itertools.count() if index not in taken)
        given = self._given is not None
        kept += [Seat(next(free), one, self._nvml, self._stamp_clocks, given=given) for one in new]
        self._seats = sorted(kept, key=lambda seat: seat.index)

    def _targets(self) -> list[Target]:
        if self._given is not None:
            return list(self._given)
        reason = ""
        try:
            own = self._rank_devices()
            if own is None:
                value = os.environ.get("CUDA_VISIBLE_DEVICES")
                found: list[Target] = list(visible_devices(value, self._nvml.count(), self._uuid_of))
            else:
                found = list(own)
        except DriverError as error:
            found, reason = [], f"the driver did not answer: {error}"
            if error.code == Code.UNINITIALIZED:
                self._gone(error)
        except Exception as error:  # noqa: BLE001 - which devices there are is not worth a run
            found, reason = [], f"the run's own devices cannot be told: {error!r}"
        if not found:
            self._tell_none(reason or mapping.why_none())
        return found

    def _tell_none(self, reason: str) -> None:
        if reason != self._none and not self._seats:
            self._none = reason
            _log.info("trackperf: no GPU is read: %s", reason)

    def _uuid_of(self, index: int) -> str | None:
        try:
            return self._nvml.uuid(self._nvml.by_index(index))
        except DriverError:
            return None


def _mean(key: str, name: str, found: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over the devices that have a value; nothing where none has."""
    values = [device[name] for device in found.values() if name in device]
    return {key: sum(values) / len(values)} if values else {}
