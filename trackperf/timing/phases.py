"""Context managers of the training thread: phases, fetches, transfers and steps without a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trackperf.timing.marks import DATA, END, TRANSFER, Batch

if TYPE_CHECKING:
    from types import TracebackType

    from trackperf.timing.marks import Marks

__all__ = ["NULL", "Null", "Phase", "Span", "Step", "data_span", "transfer_span"]

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

    __slots__ = ("_begin", "_clock", "_end", "_marks", "_push")

    def __init__(self, marks: Marks, kind: int) -> None:
        self._marks = marks
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
        marks = self._marks
        if len(marks.events) > _MANY:
            marks.wake(self._clock())


class Phase(Span):
    """A stretch that is not training: taken out of the step it lies in, and loops in it make no steps."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Mark the beginning."""
        self._marks.phase_depth += 1
        self._push((self._begin, self._clock()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Mark the end."""
        self._push((self._end, self._clock()))
        marks = self._marks
        marks.phase_depth -= 1
        if len(marks.events) > _MANY:
            marks.wake(self._clock())


def data_span(marks: Marks) -> Span:
    """Return the context manager of a fetch outside `next(loader)`."""
    return Span(marks, DATA)


def transfer_span(marks: Marks) -> Span:
    """Return the context manager of a move to the device."""
    return Span(marks, TRANSFER)


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
        self._begin = marks.clock()

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
        if kind is None:
            marks.batches.extend((begin, begin, end, self._samples, self._tokens, END))
        if end >= marks.wake_at or len(marks.batches) >= marks.limit:
            marks.wake(end)

    def open_batch(self) -> Batch | None:
        """Return the step that runs now."""
        begin = self._begin
        if not begin:
            return None
        return Batch(fetch_ns=begin, handed_ns=begin, samples=self._samples, tokens=self._tokens, flags=END)
