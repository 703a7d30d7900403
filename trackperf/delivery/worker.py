"""The thread that serves one sink: hands over in order, survives whatever the sink does, and counts."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, cast

from trackperf.delivery.queue import BoundedQueue, End, Item
from trackperf.record import Alert, Point, RunInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackperf.sink import Sink

__all__ = ["Worker"]

_log = logging.getLogger("trackperf")

_BATCH: Final = 1000
"""Points handed over at once, at most."""

_MAX_FAILURES: Final = 5
"""Failures in a row after which a sink is switched off."""

_WARN_EVERY_S: Final = 60.0
"""Least time between two warnings about the same sink's failures."""


class Worker:
    """
    One sink's queue and its daemon thread.

    A batch that the sink refuses is lost, not tried again: a sink that can fail for a while keeps its own
    store, and a second try of one that writes half a batch would write that half twice.
    """

    def __init__(self, sink: Sink, *, clock: Callable[[], float], max_bytes: int) -> None:
        self.name = str(sink.name)
        """Name of the sink, for messages."""
        self.ended = False
        """Whether the thread has done all that it had to do."""
        self._sink = sink
        self._clock = clock
        self._queue = BoundedQueue(max_bytes)
        self._thread: threading.Thread | None = None
        self._waiters: deque[SimpleQueue[None]] = deque()
        self._end: End | None = None
        self._opened = False
        self._off = ""
        self._refused = False
        self._last_error = ""
        self._failures = 0
        self._warned_at: float | None = None
        self._doing = ""
        self._overflowed = False
        self._concluded = False

    @property
    def lost(self) -> tuple[int, int]:
        """Points and alerts that the sink did not get, so far."""
        return self._queue.lost

    def start(self) -> None:
        """Start the thread; a sink for which the system has none left is switched off."""
        thread = threading.Thread(target=self._run, name=f"trackperf-{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._off, self._refused = f"no thread could be started for it: {error}", True
            _log.warning("trackperf: sink %s is switched off: %s", self.name, self._off)
            self._queue.shut()
            self.ended = True
        else:
            # Only now: a signal handler that interrupts the start must not wait for a thread held up by it.
            self._thread = thread

    def put(self, item: Item) -> None:
        """Queue an item; never waits."""
        if isinstance(item, End) and self._end is None:
            self._end = item
        if self._queue.put(item) and not self._overflowed:
            self._overflowed = True
            _log.warning(
                "trackperf: sink %s takes points more slowly than they come: the oldest are lost (in %s)",
                self.name,
                self._doing or "no call",
            )

    def wait(self, timeout_s: float) -> bool:
        """Wait until the thread has ended, and say whether it has."""
        if self._thread is None or self._thread is threading.current_thread():
            return self.ended
        # Each waiter brings its own queue: a signal handler may wait inside another wait.
        answer: SimpleQueue[None] = SimpleQueue()
        self._waiters.append(answer)
        if not self.ended:
            with contextlib.suppress(Empty):
                answer.get(timeout=max(0.0, timeout_s))
        return self.ended

    def conclude(self, waited_s: float) -> None:
        """Give up what the sink has not finished, and say once what it did not get."""
        if self._concluded or self._thread is threading.current_thread():
            return
        self._concluded = True
        hung = not self.ended
        if hung:
            self._off = self._off or self._absence(waited_s)
            self._queue.shut()
        points, alerts = self.lost
        if points or alerts:
            what = " and ".join(_count(*lost) for lost in ((points, "point"), (alerts, "alert")) if lost[0])
            what += " was" if points + alerts == 1 else " were"
            why = (
                self._off
                or self._last_error
                or ("it was too slow" if self._opened else "it was never opened")
            )
            level = logging.INFO if self._refused else logging.WARNING
            _log.log(level, "trackperf: sink %s: %s not delivered: %s", self.name, what, why)
        elif hung and self._thread is not None:
            _log.warning("trackperf: sink %s: the run may look unfinished there: %s", self.name, self._off)

    def _absence(self, waited_s: float) -> str:
        if self._thread is None:
            return "it was never started"
        return f"it did not come back from {self._doing or 'its work'} within {waited_s:g} s"

    def forget(self) -> None:
        """Hold nothing, in a forked child."""
        self._queue.forget()
        self._waiters.clear()

    def _run(self) -> None:
        try:
            while batch := self._queue.take(_BATCH):
                if isinstance(batch[0], End):
                    break
                self._queue.settle(accepted=self._handle(batch))
                del batch
            self._finish()
        finally:
            self._queue.shut()
            self.ended = True
            while self._waiters:
                self._waiters.popleft().put(None)

    def _handle(self, batch: list[Item]) -> bool:
        """Hand a batch over, and return whether the sink has it."""
        first = batch[0]
        if isinstance(first, RunInfo):
            run = first
            self._opened = self._attempt("open", lambda: self._sink.open(run))
            return self._opened
        if isinstance(first, SimpleQueue):
            first.put(True)
            return True
        if not self._opened or self._off:
            return False
        if isinstance(first, Alert):
            alert = first
            return self._attempt("alert", lambda: self._sink.alert(alert))
        points = cast("list[Point]", batch)
        return self._attempt("write", lambda: self._sink.write(points))

    def _finish(self) -> None:
        end = self._end
        if self._opened and end is not None:
            self._attempt("close", lambda: self._sink.close(end.summary, end.status))

    def _attempt(self, what: str, call: Callable[[], None]) -> bool:
        self._doing = what
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - a sink may raise anything, SystemExit included
            self._failed(what, error)
            return False
        finally:
            self._doing = ""
        self._failures = 0
        return True

    def _failed(self, what: str, error: BaseException) -> None:
        self._failures += 1
        why = f"{what} failed: {type(error).__name__}: {error}"
        self._last_error = why
        if self._concluded:
            return
        if what == "open" or (self._failures >= _MAX_FAILURES and what != "close"):
            self._off = why if what == "open" else f"{self._failures} times in a row {why}"
            self._refused = what == "open"
            _log.warning(
                "trackperf: sink %s is switched off: %s. Training goes on; what it would have got is lost.",
                self.name,
                self._off,
                exc_info=error if self._warned_at is None else None,
            )
            return
        now = self._clock()
        if self._warned_at is None or now - self._warned_at >= _WARN_EVERY_S or what == "close":
            exc_info = error if self._warned_at is None else None
            self._warned_at = now
            _log.warning("trackperf: sink %s: %s", self.name, why, exc_info=exc_info)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
