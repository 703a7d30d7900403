"""
What waits for one sink, in order, within a limit of memory, and without a lock.

A signal handler may close the delivery while the thread that it interrupted is in here, and then waits for
the worker, who must get on: a lock that the interrupted thread holds would stop both. So points wait in one
lane and everything else in another, each a `deque` with atomic ends; tickets tell the order across the two;
and every count has one writer. Waking goes through a `SimpleQueue`, whose `put` may interrupt another `put`
of the same thread, which `Event` and `Condition` do not allow.

When a sink stalls, the oldest points give way: what a person looks at, and what a sink that comes back needs
to be up to date, is the newest. An alert is refused only when no point is left to give way to it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BoundedQueue", "End", "Item", "Mark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The last item of a run."""

    summary: RunSummary
    """What the sink is closed with."""

    status: Status
    """How the run ended."""


Mark: TypeAlias = SimpleQueue[bool]
"""Answers whoever flushes: True when everything before it was handed over."""

Item: TypeAlias = RunInfo | Point | Alert | Mark | End
"""What can wait for a sink."""

# Measured on CPython 3.11 and rounded up: the record, its dict, a float a value; keys are shared.
_POINT_BYTES: Final = 400
_VALUE_BYTES: Final = 110
_ALERT_BYTES: Final = 600


class _Tally:
    """What one party has lost; only that party writes it."""

    __slots__ = ("alerts", "points")

    def __init__(self) -> None:
        self.points = 0
        self.alerts = 0

    def add(self, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, Point):
                self.points += 1
            elif isinstance(item, Alert):
                self.alerts += 1
            elif isinstance(item, SimpleQueue):
                item.put(False)


class BoundedQueue:
    """
    A queue for one producer at a time, one consumer, and whoever shuts it.

    What was taken counts as held until it is settled, since the sink still works on it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._points: deque[tuple[int, Point]] = deque()
        self._others: deque[tuple[int, RunInfo | Alert | Mark | End]] = deque()
        self._tickets = itertools.count()
        self._taken: deque[list[Item]] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._ending = False
        self._shut = False
        self._bytes_in = 0
        self._bytes_given_up = 0
        self._bytes_settled = 0
        self._lost_in_put = _Tally()
        self._lost_by_sink = _Tally()
        self._lost_in_shut = _Tally()

    def __len__(self) -> int:
        """Return how many items wait, those with the sink not counted."""
        return len(self._points) + len(self._others)

    @property
    def lost(self) -> tuple[int, int]:
        """Points and alerts that the sink did not get, so far."""
        tallies = (self._lost_in_put, self._lost_by_sink, self._lost_in_shut)
        return sum(tally.points for tally in tallies), sum(tally.alerts for tally in tallies)

    def put(self, item: Item) -> bool:
        """Add an item, without waiting; return whether any had to give way."""
        size = _size(item)
        if self._ending or self._shut:
            self._lost_in_put.add([item])
            return False
        if isinstance(item, Point):
            self._bytes_in += size
            self._points.append((next(self._tickets), item))
        elif isinstance(item, Alert) and not self._points and self._held() + size > self._max_bytes:
            self._lost_in_put.add([item])
            return True
        else:
            self._bytes_in += size
            self._ending = isinstance(item, End)
            self._others.append((next(self._tickets), item))
        given_up = self._shed()
        self._discard_if_shut(self._lost_in_put)
        self._rouse()
        return given_up

    def take(self, limit: int) -> list[Item]:
        """
        Wait for what comes next: up to `limit` points in a row, or one item of another kind.

        Returns an empty list once the queue is shut. Whatever it returns is to be settled.
        """
        while True:
            if batch := self._next(limit):
                self._taken.append(list(batch))
                if not self._shut:
                    return batch
                self.settle(accepted=False)
            if self._discard_if_shut(self._lost_by_sink):
                return []
            self._wake.get()

    def settle(self, *, accepted: bool) -> None:
        """Say of what was taken whether the sink has it."""
        with contextlib.suppress(IndexError):  # who shut the queue has counted it
            batch = self._taken.pop()
            self._bytes_settled += sum(map(_size, batch))
            if not accepted:
                self._lost_by_sink.add(batch)

    def shut(self) -> None:
        """Take nothing more, give nothing more out, and count as lost what is not settled."""
        self._shut = True
        with contextlib.suppress(IndexError):
            self._lost_in_shut.add(self._taken.pop())
        self._discard_if_shut(self._lost_in_shut)
        self._rouse()

    def forget(self) -> None:
        """Hold nothing, in a forked child."""
        self._shut = True
        for lane in (self._points, self._others, self._taken):
            lane.clear()

    def _next(self, limit: int) -> list[Item]:
        # A point with a ticket below this one was put after all others with a lower ticket than its own, so
        # those are in sight now: nothing can slip in between that belongs before it.
        bound = next(self._tickets)
        other = bound
        with contextlib.suppress(IndexError):
            other = self._others[0][0]
        batch: list[Item] = []
        while len(batch) < limit and (point := self._pop_point(min(bound, other))):
            batch.append(point)
        if not batch and other < bound:
            with contextlib.suppress(IndexError):
                batch.append(self._others.popleft()[1])
        return batch

    def _pop_point(self, bound: int) -> Point | None:
        try:
            entry = self._points.popleft()
        except IndexError:
            return None
        if entry[0] < bound:
            return entry[1]
        self._points.appendleft(entry)
        return None

    def _shed(self) -> bool:
        given_up = False
        while self._held() > self._max_bytes:
            try:
                _, point = self._points.popleft()
            except IndexError:
                break
            given_up = True
            self._bytes_given_up += _size(point)
            self._lost_in_put.add([point])
        return given_up

    def _held(self) -> int:
        return self._bytes_in - self._bytes_given_up - self._bytes_settled

    def _discard_if_shut(self, tally: _Tally) -> bool:
        if self._shut:
            for lane in (self._points, self._others):
                with contextlib.suppress(IndexError):
                    while True:
                        tally.add([lane.popleft()[1]])
        return self._shut

    def _rouse(self) -> None:
        # One unread call is enough, and thousands would be memory without limit.
        if self._wake.empty():
            self._wake.put(None)


def _size(item: Item) -> int:
    """Return about how many bytes an item holds, never much too little."""
    if isinstance(item, Point):
        return _POINT_BYTES + _VALUE_BYTES * len(item.values)
    if isinstance(item, Alert):
        return _ALERT_BYTES + 2 * (len(item.cause) + len(item.advice))
    return 0
