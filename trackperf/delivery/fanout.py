"""Every record to every sink: what the reporter talks to."""

from __future__ import annotations

import os
import time
import weakref
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from trackperf.delivery.queue import End, Mark
from trackperf.delivery.spooled import Spooled
from trackperf.delivery.worker import Worker
from trackperf.sink import Remote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackperf.record import Alert, Point, RunInfo, RunSummary, Status
    from trackperf.sink import Sink

__all__ = ["Delivery"]

MAX_BYTES: Final = 16 * 1024 * 1024
"""What a stalled sink holds at most, by estimate."""

CLOSE_TIMEOUT_S: Final = 5.0
"""How long all sinks together may take to finish."""


class Delivery:
    """
    Hands records to sinks, each on a daemon thread of its own; only `flush` and `close` wait, within a limit.

    A sink whose tracker may be away (`Remote`) gets a spool on disk, and a second thread that empties it.

    No method raises for what a sink does. In a forked child every method does nothing.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """
        Args:
            sinks: where to deliver to; may be empty.

            clock: seconds of a monotonic clock.

            max_bytes: what one sink's queue holds at most, by estimate, before the oldest points give way.
        """
        served = [Spooled(sink, clock=clock) if isinstance(sink, Remote) else sink for sink in sinks]
        self._spooled = tuple(sink for sink in served if isinstance(sink, Spooled))
        self._workers = tuple(Worker(sink, clock=clock, max_bytes=max_bytes) for sink in served)
        self._parts: tuple[Worker | Spooled, ...] = (*self._workers, *self._spooled)
        self._clock = clock
        self._pid = os.getpid()
        self._started = False
        self._deadline: float | None = None

    def start(self) -> None:
        """Start the worker threads: once, and early, since at the interpreter's exit none can be started."""
        if self._elsewhere() or self._started or self._deadline is not None:
            return
        self._started = True
        _forget_after_fork(self)
        for part in self._parts:
            part.start()

    def open(self, info: RunInfo) -> None:
        """Let every sink begin the run; comes first."""
        self._put(info)

    def write(self, point: Point) -> None:
        """Hand a point to every sink."""
        self._put(point)

    def alert(self, alert: Alert) -> None:
        """Hand an alert to every sink, in order with the points."""
        self._put(alert)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the sinks have all that was handed over so far, and return whether they have."""
        if self._elsewhere():
            return True
        if self._deadline is not None:
            return all(worker.ended for worker in self._workers)
        deadline = self._clock() + timeout_s
        marks: list[Mark] = []
        for worker in self._workers:
            marks.append(SimpleQueue())
            worker.put(marks[-1])
        in_hand = all(self._answer(mark, deadline) for mark in marks)
        arrived = [spooled.flush(deadline - self._clock()) for spooled in self._spooled]
        return in_hand and all(arrived)

    def close(self, summary: RunSummary, status: Status, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """
        Let all sinks finish, at the same time, and leave behind those that do not.

        May be called again, from another thread, or from a signal handler that interrupts any method here,
        `close` included: a later call waits for what the first one began, within the first one's time.

        Args:
            summary: what every sink is closed with.

            status: how the run ended.

            timeout_s: limit for all sinks together; what is not delivered by then stays in the sink's spool,
                or is counted, and it is said.
        """
        if self._elsewhere():
            return
        if self._deadline is None:
            self._deadline = self._clock() + timeout_s
        for spooled in self._spooled:
            spooled.ending(self._deadline)
        for worker in self._workers:
            worker.put(End(summary=summary, status=status))
        for part in self._parts:
            part.wait(self._deadline - self._clock())
        for part in self._parts:
            part.conclude(timeout_s)

    @property
    def dropped(self) -> Mapping[str, int]:
        """What was lost so far: `points/<sink>` and `alerts/<sink>`, of the sinks that lost any."""
        counts: dict[str, int] = {}
        for part in self._parts:
            for kind, lost in zip(("points", "alerts"), part.lost, strict=True):
                if lost:
                    key = f"{kind}/{part.name}"
                    counts[key] = counts.get(key, 0) + lost
        return counts

    @property
    def dropped_points(self) -> int:
        """Points lost so far, a point that two sinks did not get counted twice."""
        return sum(part.lost[0] for part in self._parts)

    def _put(self, item: RunInfo | Point | Alert) -> None:
        if not self._elsewhere():
            for worker in self._workers:
                worker.put(item)

    def _answer(self, mark: Mark, deadline: float) -> bool:
        try:
            return mark.get(timeout=max(0.0, deadline - self._clock()))
        except Empty:
            return False

    def _elsewhere(self) -> bool:
        return os.getpid() != self._pid

    def _forget(self) -> None:
        for part in self._parts:
            part.forget()


_live: Final[weakref.WeakSet[Delivery]] = weakref.WeakSet()
_registered: Final[list[bool]] = []


def _forget_after_fork(delivery: Delivery) -> None:
    """Empty the queues of `delivery` in children forked from now on, for as long as it exists."""
    _live.add(delivery)
    if not _registered and hasattr(os, "register_at_fork"):
        _registered.append(True)
        os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for delivery in list(_live):
        delivery._forget()  # noqa: SLF001 - the other half of the same class
