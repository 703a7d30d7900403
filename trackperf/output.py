"""From catalogue keys and moments to what the sinks get: keys under the run's prefix, wall-clock times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackperf.delivery import Delivery
from trackperf.metrics import full_key
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackperf.sink import Sink
    from trackperf.timing.marks import Clock

__all__ = ["Output"]


class Output:
    """All sinks of a run; they open with the first thing that there is to say."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        describe: Callable[[], RunInfo],
        *,
        prefix: str,
        clock: Clock,
        wall: Callable[[], float],
    ) -> None:
        """
        Args:
            sinks: where to write.

            describe: makes the run's description when they open.

            prefix: what keys begin with.

            clock: monotonic nanoseconds, of the moments.

            wall: seconds since the epoch.
        """
        self.opened = False
        self._delivery = Delivery(sinks)
        self._describe = describe
        self._prefix = prefix
        self._clock = clock
        self._wall = wall

    def start(self) -> None:
        """Start the sinks' threads."""
        self._delivery.start()

    def open(self) -> None:
        """Let the run show, if it does not yet."""
        if not self.opened:
            self.opened = True
            self._delivery.open(self._describe())

    def wall_time(self, moment_ns: int) -> float:
        """Return seconds since the epoch at a moment."""
        return self._wall() - (self._clock() - moment_ns) / 1e9

    def point(self, step: int, at_ns: int, values: Mapping[str, float]) -> None:
        """Write values, by catalogue key, at a step."""
        self.open()
        written = {full_key(key, self._prefix): value for key, value in values.items()}
        self._delivery.write(Point(step=step, wall_time=self.wall_time(at_ns), values=written))

    def alert(self, alert: Alert) -> None:
        """Write an alert."""
        self.open()
        self._delivery.alert(alert)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the sinks have what there is, and return whether they have."""
        return self._delivery.flush(timeout_s)

    def close(self, summary: RunSummary, status: Status, timeout_s: float) -> None:
        """Let the sinks finish, within a limit of time."""
        self._delivery.close(summary, status, timeout_s=timeout_s)

    @property
    def dropped(self) -> Mapping[str, int]:
        """What the sinks did not get, by kind."""
        return self._delivery.dropped

    @property
    def dropped_points(self) -> int:
        """Points that the sinks did not get."""
        return self._delivery.dropped_points
