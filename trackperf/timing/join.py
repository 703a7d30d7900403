"""Gives each window the device's times of its own batches, which come a few steps late."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from trackperf.timing.device import DEVICE_STRIDE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trackperf.timing.windows import Window

__all__ = ["DeviceJoin"]

_HELD: Final = 3
"""Windows that wait for the device, at most."""

_EXPOSED, _REST, _COPY = range(1, DEVICE_STRIDE)


class DeviceJoin:
    """
    Holds windows back until their batches were timed by the device, in order.

    A window waits for at most three more; what comes for it later is left out and counted.
    """

    def __init__(self) -> None:
        self.late = 0
        """Batches whose times came after their window was let go."""
        self._windows: deque[Window] = deque()
        self._keys: NDArray[np.int64] = np.empty(0, np.int64)
        self._times: NDArray[np.float64] = np.empty((0, DEVICE_STRIDE - 1), np.float64)
        self._gone_ns = -1

    def feed(
        self, windows: Sequence[Window], times: Sequence[float], *, active: bool, final: bool = False
    ) -> list[Window]:
        """
        Take windows that closed and times that came, and return the windows that are complete.

        Args:
            windows: in order.

            times: `DEVICE_STRIDE` numbers a batch, in any order.

            active: whether the device is timed at all; else windows pass as they are.

            final: whether nothing more will come.
        """
        self._windows.extend(windows)
        if not active:
            return self._let_go(len(self._windows))
        if times:
            # Apart, since a clock that has run for months is more than a float can tell to the nanosecond.
            keys = np.concatenate((self._keys, np.array(times[::DEVICE_STRIDE], np.int64)))
            new = [times[place::DEVICE_STRIDE] for place in (_EXPOSED, _REST, _COPY)]
            rows = np.concatenate((self._times, np.array(new, np.float64).T))
            order = np.argsort(keys, kind="stable")
            self._keys, self._times = keys[order], rows[order]
        self._give()
        if final:
            return self._let_go(len(self._windows))
        ready = 0
        for place, window in enumerate(self._windows):
            if window.device_seen < window.batches and len(self._windows) - place <= _HELD:
                break
            ready += 1
        return self._let_go(ready)

    def _give(self) -> None:
        """Add to each window that waits the times of its batches."""
        keys = self._keys
        late = int(np.searchsorted(keys, self._gone_ns, side="left"))
        self.late += late
        used = late
        for window in self._windows:
            low, high = np.searchsorted(keys, (window.start_ns, window.end_ns), side="left")
            _add(window, self._times[low:high])
            used = max(used, int(high))
        self._keys, self._times = keys[used:], self._times[used:]

    def _let_go(self, count: int) -> list[Window]:
        gone = [self._windows.popleft() for _ in range(count)]
        if gone:
            self._gone_ns = gone[-1].end_ns
        return gone


def _add(window: Window, rows: NDArray[np.float64]) -> None:
    exposed, rest, copy = rows.T
    window.device_seen += exposed.size
    known = exposed >= 0
    window.device_batches += int(known.sum())
    window.exposed_ns += _ns(exposed[known])
    window.device_ns += _ns(exposed[known]) + _ns(rest[known])
    copied = copy >= 0
    window.copied_batches += int(copied.sum())
    window.copied_ns += _ns(copy[copied])


def _ns(milliseconds: NDArray[np.float64]) -> int:
    return round(float(milliseconds.sum()) * 1e6)
