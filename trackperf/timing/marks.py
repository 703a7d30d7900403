"""
Marks: the only thing that the training thread makes.

Two flat lists of integers. A batch appends six (`STRIDE`) in one call, a phase, a fetch or a transfer two at
each of its ends. Flat integers rather than objects: nothing here is tracked by the garbage collector, and one
`list.extend` is atomic, so that the reporter can take what is there without a lock in the step.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from trackperf.timing.device import DEVICE_STRIDE

if TYPE_CHECKING:
    from trackperf.timing.device import DeviceTimeline
    from trackperf.timing.phases import Span

__all__ = [
    "END",
    "FETCHED",
    "FIRST",
    "KINDS",
    "STRIDE",
    "Batch",
    "Clock",
    "Drained",
    "Lost",
    "Marks",
    "Owner",
]

Clock = Callable[[], int]
"""A monotonic clock in nanoseconds."""

STRIDE: Final = 6
"""Integers a batch: fetch begins, batch handed out, body ends (ns); samples, tokens (-1 unknown); flags."""

END: Final = 1
"""Flag of a batch whose body ends a step."""

FIRST: Final = 2
"""Flag of the first batch of an iterator."""

FETCHED: Final = 4
"""Flag of a batch whose wait was measured: it came from a loader."""

KINDS: Final = ("pass", "data", "transfer")
"""What an event can be about; a phase is `len(KINDS)` plus its place in `Marks.phases`.

An event is two integers: twice the kind, plus 1 when it ends; and the time in nanoseconds.
"""

PASS, DATA, TRANSFER = range(len(KINDS))

_WAKE_BATCHES: Final = 4096
_HOLD_BATCHES: Final = 16 * _WAKE_BATCHES
_HOLD_EVENTS: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that was handed out and whose body has not ended."""

    fetch_ns: int
    handed_ns: int
    samples: int
    tokens: int
    flags: int


class Owner(Protocol):
    """A loop whose bodies are the steps just now."""

    def open_batch(self) -> Batch | None:
        """Return the batch whose body runs now, None between batches."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Batches whose single marks had to be given up, in sums: nothing is missing but their distribution."""

    batches: int
    steps: int
    samples: int
    """-1 when any of them was unknown."""
    tokens: int
    """-1 when any of them was unknown."""
    wait_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What the reporter took out."""

    batches: list[int]
    events: list[int]
    lost: list[Lost]
    cost_ns: int
    """trackperf's own time in the batches that were probed."""
    probes: int
    """How many were."""
    device_times: list[float] = field(default_factory=list)
    """Times of batches on the device."""


class Marks:
    """
    The marks of one run, and the reporter's alarm clock.

    Appending is for the training thread alone; `drain` for whoever holds the timeline.
    """

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        """
        Args:
            clock: a monotonic clock in nanoseconds.
        """
        self.clock = clock
        self.batches: list[int] = []
        self.events: list[int] = []
        self.phases: list[str] = []
        self.lost: list[Lost] = []
        self.device_times: list[float] = []
        """Times of batches on the device (`device.DEVICE_STRIDE`)."""
        self.device: DeviceTimeline | None = None
        """The device's clock, once it is in use."""
        self.find_device: Callable[[], DeviceTimeline | None] = _no_device
        """Finds it out; asked now and then."""
        self.wake_at = 0
        """Time from which the end of a body wakes the reporter."""
        self.limit = STRIDE * _WAKE_BATCHES
        """Length of `batches` from which the end of a body wakes the reporter."""
        self.owner: Owner | None = None
        """The loop whose bodies are the steps; set by the loops themselves."""
        self.spans: list[Span] = []
        """What marks the ends of phases, fetches and transfers."""
        self.cost_ns = 0
        self.probes = 0
        self.closed = False
        self.alarm: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._taking = threading.Lock()
        _LIVE.add(self)

    @property
    def in_phase(self) -> bool:
        """Whether a phase is open."""
        return any(span.depth for span in self.spans)

    def kind_of_phase(self, name: str) -> int:
        """Return the kind under which events of the phase `name` are recorded."""
        if name not in self.phases:
            self.phases.append(name)
        return len(KINDS) + self.phases.index(name)

    def reclaim(self, owner: Owner) -> None:
        """Let the bodies of `owner` be the steps, where no other loop's are."""
        if self.owner is None:
            self.owner = owner

    def interval(self, kind: int, begin_ns: int, end_ns: int) -> None:
        """Record something that is over already."""
        self.events.extend((2 * kind, begin_ns, 2 * kind + 1, end_ns))

    def wake(self, now_ns: int) -> None:
        """
        Wake the reporter; called by the training thread when a window is due or marks pile up.

        `SimpleQueue.put` never blocks and may be interrupted by a signal handler that puts as well.
        """
        self.wake_at = now_ns + 1_000_000_000
        if self.closed:
            self.batches.clear()
            self.events.clear()
            self.device_times.clear()
            return
        if self.alarm.empty():
            self.alarm.put(None)
        if len(self.batches) >= STRIDE * _HOLD_BATCHES or len(self.events) >= _HOLD_EVENTS:
            self._give_up()
        # Not again at every step until the reporter has come: it waits for the interpreter lock.
        self.limit = len(self.batches) + STRIDE * _WAKE_BATCHES

    def drain(self) -> Drained:
        """
        Take all marks that are whole.

        Batches before events: what happened in a body was appended before the body ended, so that the
        events taken are never behind the batches.
        """
        self.limit = STRIDE * _WAKE_BATCHES
        with self._taking:
            n = len(self.batches) // STRIDE * STRIDE
            batches = self.batches[:n]
            del self.batches[:n]
            lost, self.lost = self.lost, []
        m = len(self.events) // 2 * 2
        events = self.events[:m]
        del self.events[:m]
        k = len(self.device_times) // DEVICE_STRIDE * DEVICE_STRIDE
        device_times = self.device_times[:k]
        del self.device_times[:k]
        cost, probes = self.cost_ns, self.probes
        self.cost_ns -= cost
        self.probes -= probes
        return Drained(
            batches=batches,
            events=events,
            lost=lost,
            cost_ns=cost,
            probes=probes,
            device_times=device_times,
        )

    def close(self) -> None:
        """Take no more marks: loops that still run go on, and what they append is thrown away."""
        self.closed = True
        self.owner = None
        for span in self.spans:
            span.mute()
        self.batches.clear()
        self.events.clear()
        self.device_times.clear()

    def _give_up(self) -> None:
        """Fold what nobody took into sums: the reporter is stuck, and memory must not grow."""
        if not self._taking.acquire(blocking=False):
            return
        try:
            n = len(self.batches) // STRIDE * STRIDE
            if n:
                self.lost.append(_sums(self.batches[:n]))
                del self.batches[:n]
            if len(self.events) >= _HOLD_EVENTS and not self.in_phase:
                # What the reporter saw begin must not stay open for ever.
                now = self.clock()
                self.events[:] = [number for span in self.spans for number in (span.end_code, now)]
            self.device_times.clear()
        finally:
            self._taking.release()


def _no_device() -> None:
    return None


def _sums(batches: list[int]) -> Lost:
    samples, tokens = batches[3::STRIDE], batches[4::STRIDE]
    return Lost(
        batches=len(batches) // STRIDE,
        steps=sum(flags & END for flags in batches[5::STRIDE]),
        samples=-1 if min(samples) < 0 else sum(samples),
        tokens=-1 if min(tokens) < 0 else sum(tokens),
        wait_ns=sum(batches[1::STRIDE]) - sum(batches[0::STRIDE]),
        start_ns=batches[0],
        end_ns=batches[-4],
    )


_LIVE: weakref.WeakSet[Marks] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child has no reporter: what it would mark is thrown away."""
    for marks in list(_LIVE):
        marks._taking = threading.Lock()  # noqa: SLF001 - the parent may have held it at the fork
        marks.alarm = queue.SimpleQueue()
        marks.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
