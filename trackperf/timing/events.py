"""
From events to intervals: which stretches belong to a phase, to a fetch, to a transfer, to a pass.

Every nanosecond belongs to the innermost phase that is open; fetches and transfers inside a phase are the
phase's own business and are forgotten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackperf.timing.marks import DATA, KINDS, PASS, TRANSFER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Events", "Interval", "Segment", "overlap"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of time, in nanoseconds."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch that belongs to one phase."""

    name: str
    begin: int
    end: int


class Events:
    """What is known of phases and fetches so far; consumed by the timeline as steps come in."""

    def __init__(self) -> None:
        self.segments: deque[Segment] = deque()
        """Stretches of phases, innermost phase only, in order, not yet added to the totals."""
        self.outer: list[Interval] = []
        """Outermost phases that ended, in order."""
        self.data: list[Interval] = []
        self.transfers: list[Interval] = []
        self.passes: list[Interval] = []
        self._open: dict[int, list[int]] = {kind: [] for kind in range(len(KINDS))}
        self._stack: list[tuple[str, int]] = []
        self._since = 0
        self._outer_begin = 0

    def feed(self, events: Sequence[int], phases: Sequence[str]) -> None:
        """
        Take events in the order in which they were appended.

        Args:
            events: pairs of kind and time (`marks.KINDS`).

            phases: names of phases by their place.
        """
        for place in range(0, len(events), 2):
            code, now = events[place], events[place + 1]
            kind, ends = code >> 1, code & 1
            if kind >= len(KINDS):
                name = phases[kind - len(KINDS)]
                if ends:
                    self._leave(name, now)
                else:
                    self._enter(name, now)
            elif ends:
                self._end(kind, now)
            else:
                self._open[kind].append(now)

    def blocked(self) -> list[Interval]:
        """Return the outermost phases, the one that is open reaching for ever."""
        if self._stack:
            return [*self.outer, Interval(self._outer_begin, 1 << 62)]
        return self.outer

    def split_at(self, now: int) -> None:
        """End the running segment at `now` and begin the next: so far it can be added to the totals."""
        if self._stack:
            self._segment(now)

    def forget(self, *, phases_until: int, fetches_until: int) -> int:
        """Forget what no step needs any more, and return how long the phases were."""
        kept = next(
            (place for place, item in enumerate(self.outer) if item.end > phases_until), len(self.outer)
        )
        length = sum(item.end - item.begin for item in self.outer[:kept])
        del self.outer[:kept]
        for fetches in (self.data, self.transfers):
            if fetches and fetches[0].begin < fetches_until:
                fetches[:] = [item for item in fetches if item.begin >= fetches_until]
        return length

    def _enter(self, name: str, now: int) -> None:
        if self._stack:
            self._segment(now)
        else:
            self._outer_begin = now
        self._since = now
        self._stack.append((name, now))

    def _leave(self, name: str, now: int) -> None:
        if name not in (opened for opened, _ in self._stack):
            return
        self._segment(now)
        while self._stack.pop()[0] != name:
            pass
        if not self._stack:
            self.outer.append(Interval(self._outer_begin, now))

    def _segment(self, now: int) -> None:
        if now > self._since:
            self.segments.append(Segment(self._stack[-1][0], self._since, now))
        self._since = now

    def _end(self, kind: int, now: int) -> None:
        opened = self._open[kind]
        if not opened:
            return
        begin = opened.pop()
        if kind == PASS:
            self.passes.append(Interval(begin, now))
        elif not opened and not self._stack:
            if kind == DATA:
                self.data.append(Interval(begin, now))
            elif kind == TRANSFER:
                self.transfers.append(Interval(begin, now))


def overlap(intervals: Iterable[Interval], begin: int, end: int) -> int:
    """Return how much of `begin`..`end` the intervals cover; they do not overlap each other."""
    return sum(max(0, min(item.end, end) - max(item.begin, begin)) for item in intervals)
