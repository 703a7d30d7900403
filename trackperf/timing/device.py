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
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackperf.timing.marks import Marks

__all__ = ["DEVICE_STRIDE", "DeviceTimeline", "Event"]

DEVICE_STRIDE: Final = 4
"""Integers a batch in `Marks.device_times`: when its fetch began (host clock), exposed wait, time from its
fetch to its body's end, time of copies; nanoseconds of the device, -1 where not measured."""

_A_STEP: Final = 2
"""Batches asked about in a step, at most: more than one, so that a backlog melts."""

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


class _Used:
    """An event and how many batches still need it."""

    __slots__ = ("event", "users")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.users = 1


class _Batch:
    """The events of one batch."""

    __slots__ = ("before", "end", "fetch_ns", "fetched", "first", "pool", "ready", "spans")

    def __init__(self, fetch_ns: int, ready: _Used, pool: list[_Used], *, first: bool, fetched: bool) -> None:
        self.fetch_ns = fetch_ns
        self.first = first
        self.fetched = fetched
        """Whether its wait lies between `before` and `ready`."""
        self.before: _Used | None = None
        self.ready = ready
        self.end: _Used | None = None
        self.pool = pool
        self.spans: list[tuple[int, _Used, _Used | None]] = []


PHASE, DATA, COPY = range(3)
"""What a span inside a body is."""


class DeviceTimeline:
    """
    Times of batches on the device; everything is called on the training thread.

    An event that is never recorded, never passed, on another device than its partner, or that fails, costs
    its own batch its device times and nothing else.
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
        self._marks = marks
        self._new_event = new_event
        self._capturing = capturing
        self._device = device
        self._limit = limit
        self._pools: dict[int, list[_Used]] = {}
        self._pool: list[_Used] = []
        self._waiting: deque[_Batch] = deque()
        self._open: _Batch | None = None
        self._before: _Used | None = None
        self._failures = 0
        self._off = False

    @property
    def waiting(self) -> int:
        """Batches that the device has not passed, as far as is known."""
        return len(self._waiting)

    def ready(self, fetch_ns: int, *, first: bool, fetched: bool = True) -> None:
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
        if self._open is not None:
            self._lose(self._open)
            self._open = None
        try:
            if self._capturing():
                self._lose_time(fetch_ns)
                return
            self._pool = self._pools.setdefault(self._device(), [])
            batch = _Batch(fetch_ns, self._record(), self._pool, first=first, fetched=fetched)
        except Exception:  # noqa: BLE001 - a failing device must not fail the training here
            self._lose_time(fetch_ns, failed=True)
            return
        if before is not None and fetched and not first:
            before.users += 1
            batch.before = before
        self._open = batch
        self._resolve(_A_STEP)

    def done(self) -> None:
        """The body has ended."""
        batch, self._open = self._open, None
        if batch is None:
            return
        try:
            if self._capturing():
                self._lose(batch)
                return
            batch.end = self._record()
        except Exception:  # noqa: BLE001 - see above
            self._lose(batch, failed=True)
            return
        self._before = batch.end
        self._waiting.append(batch)

    def begin(self, kind: int) -> None:
        """A phase, a fetch or a copy begins inside the body."""
        batch = self._open
        if batch is None:
            return
        try:
            if self._capturing():
                return
            batch.spans.append((kind, self._record(), None))
        except Exception:  # noqa: BLE001 - see above
            self._open = None
            self._lose(batch, failed=True)

    def end(self, kind: int) -> None:
        """It ends."""
        batch = self._open
        if batch is None or not batch.spans:
            return
        try:
            if self._capturing():
                return
            place = next(
                place
                for place in range(len(batch.spans) - 1, -1, -1)
                if batch.spans[place][0] == kind and batch.spans[place][2] is None
            )
            batch.spans[place] = (kind, batch.spans[place][1], self._record())
        except StopIteration:
            return
        except Exception:  # noqa: BLE001 - see above
            self._open = None
            self._lose(batch, failed=True)

    def end_pass(self) -> None:
        """The loop is over: what comes next is no fetch of it."""
        self._before = None
        batch, self._open = self._open, None
        if batch is not None:
            self._lose(batch)

    def drain(self) -> int:
        """Ask about everything that waits, and return how much still does."""
        try:
            if not self._capturing():
                self._resolve(len(self._waiting))
        except Exception:  # noqa: BLE001 - see above
            self._failures += 1
        return len(self._waiting)

    def _record(self) -> _Used:
        pool = self._pool
        used = pool.pop() if pool else _Used(self._new_event())
        used.users = 1
        used.event.record()
        return used

    def _resolve(self, most: int) -> None:
        waiting = self._waiting
        for _ in range(most):
            if not waiting:
                return
            batch = waiting[0]
            try:
                if batch.end is None or not batch.end.event.query():
                    if len(waiting) > self._limit:
                        # Its events are never passed: others behind it may be.
                        waiting.popleft()
                        self._lose_time(batch.fetch_ns)
                    return
                waiting.popleft()
                times = _times(batch)
            except Exception:  # noqa: BLE001 - see above
                if waiting and waiting[0] is batch:
                    waiting.popleft()
                self._lose_time(batch.fetch_ns, failed=True)
                continue
            self._failures = 0
            self._marks.device_times.extend((batch.fetch_ns, *times))
            self._release(batch)

    def _lose(self, batch: _Batch, *, failed: bool = False) -> None:
        self._lose_time(batch.fetch_ns, failed=failed)
        if not failed:
            self._release(batch)

    def _lose_time(self, fetch_ns: int, *, failed: bool = False) -> None:
        self.lost += 1
        self._marks.device_times.extend((fetch_ns, -1, -1, -1))
        if failed:
            self._failures += 1
            if self._failures >= _ERRORS and not self._off:
                self._off = True
                self._waiting.clear()
                _log.warning("trackperf: events on the device keep failing: it is not timed")

    def _release(self, batch: _Batch) -> None:
        """Give the events back that no other batch needs."""
        of_spans = [used for _, begin, end in batch.spans for used in (begin, end)]
        for used in (batch.before, batch.ready, batch.end, *of_spans):
            if used is not None:
                used.users -= 1
                if used.users == 0:
                    batch.pool.append(used)


def _times(batch: _Batch) -> tuple[int, int, int]:
    """Return exposed wait, time from fetch to body's end, and copies, of a batch that was passed."""
    if batch.end is None:
        raise ValueError("the batch has no end")
    ready = batch.ready.event
    body = ready.elapsed_time(batch.end.event)
    spent = [0.0, 0.0, 0.0]
    seen = [False, False, False]
    for kind, begin, end in batch.spans:
        if end is None:
            raise ValueError("a span has no end")
        spent[kind] += begin.event.elapsed_time(end.event)
        seen[kind] = True
    wait = batch.before.event.elapsed_time(ready) if batch.before is not None else 0.0
    known = not batch.first and (batch.before is not None if batch.fetched else seen[DATA])
    exposed = max(0.0, wait + spent[DATA])
    total = max(0.0, wait + body - spent[PHASE])
    return (
        round(exposed * 1e6) if known else -1,
        round(total * 1e6),
        round(spent[COPY] * 1e6) if seen[COPY] else -1,
    )
