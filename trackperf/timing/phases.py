"""Context managers of the training thread: phases, fetches, transfers and steps without a loader."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, cast

from trackperf.timing import device
from trackperf.timing.marks import DATA, END, TRANSFER, Batch

if TYPE_CHECKING:
    from types import TracebackType

    from trackperf.timing.device import DeviceTimeline
    from trackperf.timing.marks import Marks

__all__ = ["NULL", "Null", "OnDevice", "Phase", "Span", "Step", "data_span", "phase_span", "transfer_span"]


class Null:
    """Does nothing: what a run that is off, or over, hands out."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""


NULL: Final = Null()


class Span:
    """
    Marks the ends of a stretch of time; one object serves all stretches of its kind, nested ones too.

    `+=` on a list is one atomic step, as `extend` is.
    """

    __slots__ = ("_begin", "_clock", "_end", "_events", "depth", "marks")

    def __init__(self, marks: Marks, kind: int) -> None:
        self.marks = marks
        self.depth = 0
        """How often it is open; counted by phases."""
        self._begin = 2 * kind
        self._end = 2 * kind + 1
        self._clock = marks.clock
        self._events = marks.events
        marks.spans.append(self)

    @property
    def end_code(self) -> int:
        """What marks the end in `Marks.events`."""
        return self._end

    def mute(self) -> None:
        """Mark nothing from now on: the run is over, and a span may be used all the same."""
        self._events = cast("list[int]", deque(maxlen=0))

    def __enter__(self) -> None:
        """Mark the beginning."""
        events = self._events
        events += (self._begin, self._clock())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Mark the end."""
        events = self._events
        events += (self._end, self._clock())


class Phase(Span):
    """A stretch that is not training: taken out of the step it lies in, and loops in it make no steps."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Mark the beginning."""
        self.depth += 1
        events = self._events
        events += (self._begin, self._clock())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Mark the end."""
        events = self._events
        events += (self._end, self._clock())
        self.depth -= 1


class OnDevice:
    """A stretch that the device times as well."""

    __slots__ = ("_device", "_inner", "_kind")

    def __init__(self, inner: Span, device: DeviceTimeline, kind: int) -> None:
        self._inner = inner
        self._device = device
        self._kind = kind

    def __enter__(self) -> None:
        """Mark the beginning."""
        self._inner.__enter__()
        self._device.begin(self._kind)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Mark the end."""
        self._device.end(self._kind)
        self._inner.__exit__(kind, error, trace)


def phase_span(marks: Marks, name: str) -> Span | OnDevice:
    """Return the context manager of a phase."""
    return _timed(Phase(marks, marks.kind_of_phase(name)), device.PHASE)


def data_span(marks: Marks) -> Span | OnDevice:
    """Return the context manager of a fetch outside `next(loader)`."""
    return _timed(Span(marks, DATA), device.DATA)


def transfer_span(marks: Marks) -> Span | OnDevice:
    """Return the context manager of a move to the device."""
    return _timed(Span(marks, TRANSFER), device.COPY)


def _timed(span: Span, kind: int) -> Span | OnDevice:
    timeline = span.marks.device
    return span if timeline is None else OnDevice(span, timeline, kind)


class Step:
    """One step without a loader. A body that raises is no step."""

    __slots__ = ("_begin", "_marks", "_samples", "_tokens")

    def __init__(self, marks: Marks, samples: int, tokens: int) -> None:
        self._marks = marks
        self._samples = samples
        self._tokens = tokens
        self._begin = 0

    def __enter__(self) -> None:
        """Begin the step."""
        marks = self._marks
        if marks.in_phase:
            return
        marks.owner = self
        self._begin = marks.clock()
        timeline = marks.device
        if timeline is not None:
            timeline.leave()
            timeline.ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the step."""
        marks = self._marks
        begin = self._begin
        if not begin:
            return
        end = marks.clock()
        self._begin = 0
        if marks.owner is self:
            marks.owner = None
        if marks.device is not None:
            if kind is None:
                marks.device.done(begin)
            else:
                marks.device.leave()
        if kind is None:
            marks.batches.extend((begin, begin, end, self._samples, self._tokens, END))
        if end >= marks.wake_at or len(marks.batches) >= marks.limit:
            marks.wake(end)
            timeline = marks.device or marks.find_device()
            if timeline is not None:
                timeline.melt()

    def open_batch(self) -> Batch | None:
        """Return the step that runs now."""
        begin = self._begin
        if not begin:
            return None
        return Batch(fetch_ns=begin, handed_ns=begin, samples=self._samples, tokens=self._tokens, flags=END)
