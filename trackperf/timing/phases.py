"""Context managers of the training thread: phases, fetches, transfers and steps without a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trackperf.timing import device
from trackperf.timing.marks import DATA, END, TRANSFER, Batch

if TYPE_CHECKING:
    from types import TracebackType

    from trackperf.timing.device import DeviceTimeline
    from trackperf.timing.marks import Marks

__all__ = ["NULL", "Null", "OnDevice", "Phase", "Span", "Step", "data_span", "phase_span", "transfer_span"]

_MANY: Final = 1 << 14


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
    """Marks the ends of a stretch of time; one object serves all stretches of its kind, nested ones too."""

    __slots__ = ("_begin", "_clock", "_end", "_push", "marks")

    def __init__(self, marks: Marks, kind: int) -> None:
        self.marks = marks
        self._begin = 2 * kind
        self._end = 2 * kind + 1
        self._clock = marks.clock
        self._push = marks.events.extend

    def __enter__(self) -> None:
        """Mark the beginning."""
        self._push((self._begin, self._clock()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Mark the end."""
        self._push((self._end, self._clock()))
        marks = self.marks
        if len(marks.events) > _MANY:
            marks.wake(self._clock())


class Phase(Span):
    """A stretch that is not training: taken out of the step it lies in, and loops in it make no steps."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Mark the beginning."""
        self.marks.phase_depth += 1
        self._push((self._begin, self._clock()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Mark the end."""
        self._push((self._end, self._clock()))
        marks = self.marks
        marks.phase_depth -= 1
        if len(marks.events) > _MANY:
            marks.wake(self._clock())


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
        if marks.phase_depth:
            return
        marks.owner = self
        self._begin = begin = marks.clock()
        timeline = marks.device
        if timeline is not None:
            timeline.ready(begin, first=False, fetched=False)

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
            marks.device.done()
        if kind is None:
            marks.batches.extend((begin, begin, end, self._samples, self._tokens, END))
        if end >= marks.wake_at or len(marks.batches) >= marks.limit:
            marks.wake(end)
            if marks.device is None:
                marks.find_device()

    def open_batch(self) -> Batch | None:
        """Return the step that runs now."""
        begin = self._begin
        if not begin:
            return None
        return Batch(fetch_ns=begin, handed_ns=begin, samples=self._samples, tokens=self._tokens, flags=END)
