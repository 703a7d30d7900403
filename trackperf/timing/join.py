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

_KEY, _EXPOSED, _TOTAL, _COPY = range(DEVICE_STRIDE)


class DeviceJoin:
    """
    Holds windows back until their batches were timed by the device, in order.

    A window waits for at most three more; what comes for it later is left out and counted.
    """

    def __init__(self) -> None:
        self.late = 0
        """Batches whose times came after their window was let go."""
        self._windows: deque[Window] = deque()
        self._times: NDArray[np.int64] = np.empty((0, DEVICE_STRIDE), np.int64)
        self._gone_ns = -1

    def feed(
        self, windows: Sequence[Window], times: Sequence[int], *, active: bool, final: bool = False
    ) -> list[Window]:
        """
        Take windows that closed and times that came, and return the windows that are complete.

        Args:
            windows: in order.

            times: `DEVICE_STRIDE` integers a batch, in any order.

            active: whether the device is timed at all; else windows pass as they are.

            final: whether nothing more will come.
        """
        self._windows.extend(windows)
        if not active:
            return self._let_go(len(self._windows))
        if times:
            new = np.array(times, np.int64).reshape(-1, DEVICE_STRIDE)
            rows = np.concatenate((self._times, new))
            self._times = rows[np.argsort(rows[:, _KEY], kind="stable")]
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
        keys = self._times[:, _KEY]
        late = int(np.searchsorted(keys, self._gone_ns, side="left"))
        self.late += late
        used = late
        for window in self._windows:
            low, high = np.searchsorted(keys, (window.start_ns, window.end_ns), side="left")
            _add(window, self._times[low:high])
            used = max(used, int(high))
        self._times = self._times[used:]

    def _let_go(self, count: int) -> list[Window]:
        gone = [self._windows.popleft() for _ in range(count)]
        if gone:
            self._gone_ns = gone[-1].end_ns
        return gone


def _add(window: Window, rows: NDArray[np.int64]) -> None:
    window.device_seen += rows.shape[0]
    known = rows[rows[:, _EXPOSED] >= 0]
    window.device_batches += known.shape[0]
    window.exposed_ns += int(known[:, _EXPOSED].sum())
    window.device_ns += int(known[:, _TOTAL].sum())
    copied = rows[rows[:, _COPY] >= 0]
    window.copied_batches += copied.shape[0]
    window.copied_ns += int(copied[:, _COPY].sum())
