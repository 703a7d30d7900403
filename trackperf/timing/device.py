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
    from collections.abc import Callable, Sequence

    from trackperf.timing.marks import Marks

__all__ = ["COPY", "DATA", "DEVICE_STRIDE", "PHASE", "DeviceTimeline", "Event"]

DEVICE_STRIDE: Final = 4
"""Numbers a batch in `Marks.device_times`: when its fetch began (nanoseconds of the host's clock), exposed
wait (-1 not known), time from its fetch to its body's end apart from that wait, -1 for a batch that was not
timed, time of copies (-1 none); milliseconds of the device."""

_MELT: Final = 16
"""Batches more that are asked about once a window, so that a backlog melts."""

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
_More: TypeAlias = "tuple[bool, list[_Span]]"
"""Whether the time before a body was its fetch and can be told, and the spans inside the body."""

_Done: TypeAlias = "tuple[Event, _More | None, int, Event, Event]"
"""The end of a body; more, where it is no usual one; when its fetch began on the host's clock; the end of the
body before; the moment at which the batch was there."""


class DeviceTimeline:
    """
    Times of batches on the device; everything is called on the training thread.

    An event that is never recorded, never passed, on another device than its partner, or that fails, costs
    its own batch its device times and nothing else. Events are used again once their batch was timed; those
    of a batch that is lost are let go.
    """

    __slots__ = (
        "_capturing",
        "_device",
        "_failures",
        "_index",
        "_limit",
        "_new_event",
        "_pool",
        "_spans",
        "_times",
        "_waiting",
        "done",
        "leave",
        "lost",
        "ready",
    )

    ready: Callable[[], None]
    """A batch is there: its body begins."""

    done: Callable[[int], None]
    """The body has ended, of the batch whose fetch began at a time on the host's clock: the key to the host's
    own marks."""

    leave: Callable[[], None]
    """A loop begins or ends: what comes until the next body is no fetch that counts."""

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
        self._capturing: list[Callable[[], bool]] = [capturing]
        self._device = device
        self._limit = limit
        self._pool: list[Event] = []
        self._index: int | None = None
        self._waiting: deque[_Done] = deque()
        self._failures = 0
        self.ready, self.done, self.leave, self._spans = self._in_a_step(capturing)

    @property
    def waiting(self) -> int:
        """Batches that the device has not passed, as far as is known."""
        return len(self._waiting)

    def _in_a_step(  # noqa: C901, PLR0915 - the hot path is one piece
        self, capturing: Callable[[], bool]
    ) -> tuple[
        Callable[[], None], Callable[[int], None], Callable[[], None], Callable[[], list[_Span] | None]
    ]:
        """
        Make what is part of every step, with nothing in it that can wait.

        Functions over variables of this one: as methods over attributes they take a quarter longer.
        """
        waiting, limit, new_event = self._waiting, self._limit, self._new_event
        append, popleft = waiting.append, waiting.popleft
        pop, give, tell = self._pool.pop, self._pool.append, self._times.extend
        opened: Event | None = None
        before: Any = None
        spans: list[_Span] | None = []

        def ready() -> None:  # noqa: C901 - as above
            nonlocal opened, before, spans
            try:
                if capturing():
                    leave()
                    return
                try:
                    event = pop()
                    event.record()
                except IndexError:
                    event = new_event()
                    event.record()
                except Exception:  # noqa: BLE001 - most likely the training went to another device
                    event, moved = self._elsewhere()
                    if moved:
                        before, spans = None, []
                opened = event
            except Exception:  # noqa: BLE001 - a failing device must not fail the training here
                leave()
                self._count_failure()
                return
            if waiting:
                end, more, key, last, start = oldest = waiting[0]
                if more is not None:
                    self._resolve()
                    return
                try:
                    if end.query():
                        popleft()
                        tell((key, last.elapsed_time(start), start.elapsed_time(end), -1))
                        give(last)
                        give(start)
                    elif len(waiting) > limit:
                        self._resolve()
                except Exception:  # noqa: BLE001 - see above
                    self._drop(oldest)

        def done(key: int) -> None:
            nonlocal opened, before, spans
            start, opened = opened, None
            try:
                if start is None or capturing():
                    self._lose(key)
                    leave()
                    return
                try:
                    event = pop()
                    event.record()
                except IndexError:
                    event = new_event()
                    event.record()
                except Exception:  # noqa: BLE001 - see above
                    event, _ = self._elsewhere()
            except Exception:  # noqa: BLE001 - see above
                leave()
                self._count_failure()
                self._lose(key)
                return
            if spans is None:
                append((event, None, key, before, start))
            else:
                append((event, (before is not None, spans), key, before or start, start))
                spans = None
            before = event

        def leave() -> None:
            nonlocal opened, before, spans
            opened, before, spans = None, None, []

        def spans_of_body() -> list[_Span] | None:
            nonlocal spans
            if opened is None or capturing():
                return None
            if spans is None:
                spans = []
            return spans

        return ready, done, leave, spans_of_body

    def begin(self, kind: int) -> None:
        """A phase, a fetch or a copy begins inside the body."""
        try:
            spans = self._spans()
            if spans is not None:
                spans.append((kind, self._record(), None))
        except Exception:  # noqa: BLE001 - a failing device must not fail the training here
            self.leave()
            self._count_failure()

    def end(self, kind: int) -> None:
        """It ends."""
        try:
            spans = self._spans() or []
            for place in range(len(spans) - 1, -1, -1):
                if spans[place][0] == kind and spans[place][2] is None:
                    spans[place] = (kind, spans[place][1], self._record())
                    return
        except Exception:  # noqa: BLE001 - see above
            self.leave()
            self._count_failure()

    def melt(self, most: int = _MELT) -> None:
        """Ask about some of what waits, besides the one of each step."""
        try:
            if not self._capturing[0]():
                for _ in range(min(most, len(self._waiting))):
                    self._resolve()
        except Exception:  # noqa: BLE001 - see above
            self._failures += 1

    def drain(self) -> int:
        """Ask about everything that waits, and return how much still does."""
        self.melt(len(self._waiting))
        return len(self._waiting)

    def _record(self) -> Event:
        event = self._pool.pop() if self._pool else self._new_event()
        event.record()
        return event

    def _elsewhere(self) -> tuple[Event, bool]:
        """
        Return a new event, recorded, and whether another device is current than before.

        Events belong to one device. Those of the device before come back when their batches are timed, into
        the pool of the one that is current then: what is in it is not used once an event of it has failed.
        """
        index = self._device()
        moved, self._index = index != self._index, index
        self._pool.clear()
        event = self._new_event()
        event.record()
        return event, moved

    def _resolve(self) -> None:
        """Ask whether the device has passed the batch that waits longest, and take its times if so."""
        if not self._waiting:
            return
        end, more, key, before, ready = oldest = self._waiting[0]
        known, spans = more or (True, [])
        try:
            if end.query():
                self._waiting.popleft()
                self._times.extend((key, *_times(before, ready, end, spans, known=known)))
                self._pool.extend({before, ready})
                self._pool.extend(event for _, *pair in spans for event in pair if event is not None)
            elif len(self._waiting) > self._limit:
                # Its events are never passed: others behind it may be.
                self._waiting.popleft()
                self._lose(key)
        except Exception:  # noqa: BLE001 - see above
            self._drop(oldest)

    def _drop(self, batch: _Done) -> None:
        """Do without a batch whose events fail."""
        if self._waiting and self._waiting[0] is batch:
            self._waiting.popleft()
        self._count_failure()
        self._lose(batch[2])

    def _lose(self, key: int) -> None:
        """Say of a batch that it was not timed."""
        self.lost += 1
        self._times.extend((key, -1, -1, -1))

    def _count_failure(self) -> None:
        last = self._times[-2:-1]
        # A batch that was timed since: told by what it left, rather than noted in every step.
        self._failures = 1 if last and last[0] >= 0 else self._failures + 1
        if self._failures == _ERRORS:
            self.ready, self.done, self.leave, self._spans = self._in_a_step(_always)
            self._capturing[0] = _always
            self._waiting.clear()
            _log.warning("trackperf: events on the device keep failing: it is not timed")


def _always() -> bool:
    """Stand in for a capture that does not end: nothing is recorded or asked any more."""
    return True


def _times(
    before: Event, ready: Event, end: Event, spans: Sequence[_Span], *, known: bool
) -> tuple[float, float, float]:
    """
    Return exposed wait, the rest from fetch to body's end, and copies, of a batch that was passed.

    Args:
        before: end of the body before; `ready` itself where the time since was no fetch that can be told.

        ready: when the batch was there.

        end: end of its body.

        spans: what was inside it.

        known: whether the time before the body was a fetch that counts.
    """
    body = ready.elapsed_time(end)
    spent = [0.0, 0.0, 0.0]
    seen = [False, False, False]
    for kind, begin, finish in spans:
        if finish is None:
            raise ValueError("a span has no end")
        spent[kind] += begin.elapsed_time(finish)
        seen[kind] = True
    wait = before.elapsed_time(ready) if known else 0.0
    exposed = max(0.0, wait + spent[DATA])
    return (
        exposed if known or seen[DATA] else -1,
        max(0.0, wait + body - spent[PHASE] - exposed),
        spent[COPY] if seen[COPY] else -1,
    )
