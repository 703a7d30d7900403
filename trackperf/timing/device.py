"""
The device's own clock: events on the training stream at both sides of each fetch, read long after.

Nothing here ever waits for the device. An event is recorded (the device stamps it when it gets there), kept,
and asked a few steps later, on the training thread, whether it was passed: a query from another thread could
break the capture of a CUDA graph, and so could one during a capture, in which nothing is recorded or asked.

With E the end of body i on the device, and S the moment at which the next batch is there: S - E is how long
the device had nothing to do for want of data, and zero where queued work hides the loader.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackperf.timing.marks import Marks

__all__ = ["DEVICE_STRIDE", "DeviceTimeline", "Event"]

DEVICE_STRIDE: Final = 4
"""Integers a batch in `Marks.device_times`: when its fetch began (host clock), exposed wait, time from its
fetch to its body's end, time of copies; nanoseconds of the device, -1 where not measured."""

_BACKLOG: Final = 8
"""Batches that wait, above which two are asked about in a step, so that a backlog melts."""

_ERRORS: Final = 100
"""Failures in a row after which nothing is recorded any more."""

_log: Final = logging.getLogger("trackperf")


class Event(Protocol):
    """What is used of `torch.cuda.Event(enable_timing=True)`."""

    def record(self) -> Any:
        """Put the event on the current stream."""
        ...

    def query(self) -> bool:
        """Return whether the device has passed it; never waits."""
        ...

    def elapsed_time(self, end: Any) -> float:
        """Return milliseconds from this event to `end`, both passed."""
        ...


PHASE, DATA, COPY = range(3)
"""What a span inside a body is."""


_Span: TypeAlias = "tuple[int, Event, Event | None]"
_Open: TypeAlias = "tuple[int, Event | None, Event, bool, bool, list[_Span]]"
"""A batch whose body runs: when its fetch began, end of the body before where the wait since is its fetch,
the moment at which it was there, whether it is a first one, whether it was fetched, spans in its body."""

_Done: TypeAlias = "tuple[_Open, Event]"
"""A batch and the end of its body."""


class DeviceTimeline:
    """
    Times of batches on the device; everything is called on the training thread.

    An event that is never recorded, never passed, on another device than its partner, or that fails, costs
    its own batch its device times and nothing else. Events are used again once their batch was timed; those
    of a batch that is lost are let go.
    """

    def __init__(
        self,
        marks: Marks,
        *,
        new_event: Callable[[], Event],
        capturing: Callable[[], bool],
        device: Callable[[], int],
        limit: int = 256,
    ) -> None:
        """
        Args:
            marks: where the times go.

            new_event: makes an event with timing.

            capturing: whether the current stream is being captured into a graph.

            device: index of the current device.

            limit: batches that wait for the device, at most.
        """
        self.lost = 0
        """Batches without device times."""
        self._times = marks.device_times
        self._new_event = new_event
        self._capturing = capturing
        self._device = device
        self._limit = limit
        self._pools: dict[int, list[Event]] = {}
        self._pool: list[Event] = []
        self._index: int | None = None
        self._waiting: deque[_Done] = deque()
        self._open: _Open | None = None
        self._before: Event | None = None
        self._failures = 0
        self._off = False

    @property
    def waiting(self) -> int:
        """Batches that the device has not passed, as far as is known."""
        return len(self._waiting)

    def ready(self, fetch_ns: int, first: bool, fetched: bool = True) -> None:
        """
        A batch is there: its body begins.

        Args:
            fetch_ns: when its fetch began, on the host's clock: the key to the host's own marks.

            first: whether it is the first of an iterator, whose wait is not counted.

            fetched: whether what came since the last body's end was a fetch.
        """
        if self._off:
            return
        before, self._before = self._before, None
        try:
            if self._open is not None:
                self._lose(self._open[0])
            if self._capturing():
                self._lose(fetch_ns)
                return
            pool = self._pool
            try:
                event = pool.pop() if pool else self._new_event()
                event.record()
            except Exception:  # noqa: BLE001 - most likely the training went to another device
                event = self._elsewhere()
                before = None
            if first or not fetched:
                before = None
            self._open = (fetch_ns, before, event, first, fetched, [])
            waiting = self._waiting
            if waiting:
                self._resolve()
                if len(waiting) > _BACKLOG:
                    self._resolve()
        except Exception:  # noqa: BLE001 - a failing device must not fail the training here
            self._fail(fetch_ns)

    def done(self) -> None:
        """The body has ended."""
        batch = self._open
        if batch is None:
            return
        self._open = None
        try:
            if self._capturing():
                self._lose(batch[0])
                return
            pool = self._pool
            event = pool.pop() if pool else self._new_event()
            event.record()
        except Exception:  # noqa: BLE001 - see above
            self._fail(batch[0])
            return
        self._before = event
        self._waiting.append((batch, event))

    def begin(self, kind: int) -> None:
        """A phase, a fetch or a copy begins inside the body."""
        batch = self._open
        if batch is None:
            return
        try:
            if not self._capturing():
                batch[5].append((kind, self._record(), None))
        except Exception:  # noqa: BLE001 - see above
            self._fail(batch[0])

    def end(self, kind: int) -> None:
        """It ends."""
        batch = self._open
        if batch is None:
            return
        spans = batch[5]
        try:
            if not self._capturing():
                for place in range(len(spans) - 1, -1, -1):
                    if spans[place][0] == kind and spans[place][2] is None:
                        spans[place] = (kind, spans[place][1], self._record())
                        return
        except Exception:  # noqa: BLE001 - see above
            self._fail(batch[0])

    def end_pass(self) -> None:
        """The loop is over: what comes next is no fetch of it."""
        self._before = None
        if self._open is not None:
            self._lose(self._open[0])
            self._open = None

    def drain(self) -> int:
        """Ask about everything that waits, and return how much still does."""
        try:
            if not self._capturing():
                for _ in range(len(self._waiting)):
                    self._resolve()
        except Exception:  # noqa: BLE001 - see above
            self._failures += 1
        return len(self._waiting)

    def _record(self) -> Event:
        event = self._pool.pop() if self._pool else self._new_event()
        event.record()
        return event

    def _elsewhere(self) -> Event:
        """Return an event recorded on the device that is current now: events belong to one device."""
        index = self._device()
        if index == self._index:
            raise RuntimeError("an event could not be recorded")
        if self._index is not None or self._pool:
            self._pools[-1 if self._index is None else self._index] = self._pool
        self._index = index
        self._pool = self._pools.setdefault(index, [])
        return self._record()

    def _resolve(self) -> None:
        """Ask whether the device has passed the batch that waits longest, and take its times if so."""
        waiting = self._waiting
        if not waiting:
            return
        batch, end = waiting[0]
        fetch_ns, before, ready, _, _, spans = batch
        try:
            if not end.query():
                if len(waiting) > self._limit:
                    # Its events are never passed: others behind it may be.
                    waiting.popleft()
                    self._lose(fetch_ns)
                return
            waiting.popleft()
            pool, times = self._pool, self._times
            if before is not None and not spans:
                wait = before.elapsed_time(ready)
                total = wait + ready.elapsed_time(end)
                times += (fetch_ns, int(wait * 1e6), int(total * 1e6), -1)
                pool += (before, ready)
            else:
                times += (fetch_ns, *_times(batch, end))
                used = [before, ready, *(event for _, begin, finish in spans for event in (begin, finish))]
                pool += [event for event in used if event is not None]
            self._failures = 0
        except Exception:  # noqa: BLE001 - see above
            if waiting and waiting[0][0] is batch:
                waiting.popleft()
            self._fail(fetch_ns)

    def _lose(self, fetch_ns: int) -> None:
        self.lost += 1
        self._times.extend((fetch_ns, -1, -1, -1))

    def _fail(self, fetch_ns: int) -> None:
        self._open = None
        self._lose(fetch_ns)
        self._failures += 1
        if self._failures >= _ERRORS and not self._off:
            self._off = True
            self._waiting.clear()
            _log.warning("trackperf: events on the device keep failing: it is not timed")


def _times(batch: _Open, finished: Event) -> tuple[int, int, int]:
    """Return exposed wait, time from fetch to body's end, and copies, of a batch that was passed."""
    _, before, ready, first, fetched, spans = batch
    body = ready.elapsed_time(finished)
    spent = [0.0, 0.0, 0.0]
    seen = [False, False, False]
    for kind, begin, end in spans:
        if end is None:
            raise ValueError("a span has no end")
        spent[kind] += begin.elapsed_time(end)
        seen[kind] = True
    wait = before.elapsed_time(ready) if before is not None else 0.0
    known = not first and (before is not None if fetched else seen[DATA])
    exposed = max(0.0, wait + spent[DATA])
    total = max(0.0, wait + body - spent[PHASE])
    return (
        round(exposed * 1e6) if known else -1,
        round(total * 1e6),
        round(spent[COPY] * 1e6) if seen[COPY] else -1,
    )
