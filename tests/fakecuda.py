"""A device that works through a queue, on the clock of a test; with the events of torch, errors included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackperf.timing.device import DeviceTimeline

if TYPE_CHECKING:
    from trackperf.testing import FakeClock
    from trackperf.timing.marks import Marks

__all__ = ["Device", "Event"]


class Device:
    """One stream: what is launched runs after what was launched before."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.tail_ns = 0
        self.index = 0
        self.capturing = False
        self.synchronisations = 0
        self.records = 0
        self.queries = 0
        self.events: list[Event] = []
        self.stuck = False
        """Events recorded now are never passed."""
        self.broken = False
        """Every call fails, as after a sticky error."""

    def launch(self, seconds: float) -> None:
        """Queue work of so many seconds; returns at once."""
        self.tail_ns = max(self.tail_ns, self.clock()) + round(seconds * 1e9)

    def synchronize(self) -> None:
        """Wait for the queue, as `.item()` does."""
        self.synchronisations += 1
        self.clock.now_ns = max(self.clock.now_ns, self.tail_ns)

    def new_event(self) -> Event:
        """Return a new event with timing."""
        event = Event(self)
        self.events.append(event)
        return event

    def timeline(self, marks: Marks, limit: int = 256) -> DeviceTimeline:
        """Return trackperf's timeline over this device."""
        return DeviceTimeline(
            marks,
            new_event=self.new_event,
            capturing=lambda: self.capturing,
            device=lambda: self.index,
            limit=limit,
        )

    def touch(self) -> None:
        """Fail where the device is broken or captured."""
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if self.capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


class Event:
    """`torch.cuda.Event(enable_timing=True)`."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_ns: int | None = None
        self.index = -1
        self.never = False

    def record(self) -> None:
        """Put the event behind what was launched."""
        self.device.touch()
        self.device.records += 1
        if self.index not in (-1, self.device.index):
            raise RuntimeError("Event device does not match recording stream's device")
        self.index = self.device.index
        self.never = self.device.stuck
        self.at_ns = max(self.device.tail_ns, self.device.clock())

    def query(self) -> bool:
        """Return whether it was passed; True when it was never recorded, as torch has it."""
        self.device.touch()
        self.device.queries += 1
        return self.at_ns is None or (not self.never and self.device.clock() >= self.at_ns)

    def elapsed_time(self, end: Event) -> float:
        """Return milliseconds between two events that were passed."""
        if self.at_ns is None or end.at_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time")
        if not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time")
        if self.index != end.index:
            raise RuntimeError("CUDA error: invalid resource handle")
        return (end.at_ns - self.at_ns) / 1e6
