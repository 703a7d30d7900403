"""
What the work costs at the least: the floor that trackperf is held against.

`collect` is about the least that a collector can do: time what comes out of the loader and what is done with
it, and hand full buffers to somebody else. It knows no samples, no phases and no nested loops. `Stopwatch` is
about the least that a context manager can do that tells how long its bodies took.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Iterator
    from types import TracebackType

__all__ = ["Stopwatch", "collect"]

T = TypeVar("T")

Buffer = list[tuple[int, int, int]]
"""Fetch begins, batch is handed out, body ends."""

_FULL: Final = 4096


def collect(loader: Iterable[T], full: deque[Buffer]) -> Iterator[T]:
    """
    Hand out batches and time them.

    Args:
        loader: where they come from.

        full: where full buffers go.
    """
    marks: Buffer = []
    begin = perf_counter_ns()
    for batch in loader:
        handed = perf_counter_ns()
        yield batch
        end = perf_counter_ns()
        marks.append((begin, handed, end))
        if len(marks) >= _FULL:
            full.append(marks)
            marks = []
        begin = end
    full.append(marks)


class Stopwatch:
    """Adds up the time of its bodies."""

    __slots__ = ("_begin", "total_ns")

    def __init__(self) -> None:
        self._begin = 0
        self.total_ns = 0

    def __enter__(self) -> None:
        """Begin a body."""
        self._begin = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.total_ns += perf_counter_ns() - self._begin
