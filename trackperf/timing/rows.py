"""
From marks of batches to arrays of steps, with phases taken out and fetches added.

Array work is per phase and per fetch, never per step, so that a loop of microsecond steps costs its
reporter little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trackperf.timing.marks import END, FETCHED, FIRST, STRIDE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trackperf.timing.events import Events, Interval

__all__ = ["Rows", "StepArrays", "Sums"]

_BEGIN, _HANDED, _END, _SAMPLES, _TOKENS, _FLAGS = range(STRIDE)
_MS: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Some steps in a row, added up. Times in nanoseconds unless said otherwise."""

    steps: int
    batches: int
    samples: int | None
    tokens: int | None
    busy_ns: int
    waits: int
    wait_ns: int
    first_wait_ns: int
    first_busy_ns: int
    first_batches: int
    longest_wait_ns: int
    transfer_ns: int | None
    end_ns: int
    step_ms: NDArray[np.float64]
    wait_ms: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepArrays:
    """Whole steps in order. Arrays of shape (steps,) first, of shape (batches,) from `samples` on."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    busy: NDArray[np.int64]
    """Time of the step, phases taken out."""
    blocked: NDArray[np.int64]
    """Time in phases before the step's end, of the phases that are still remembered."""
    first_batch: NDArray[np.int64]
    """Place of the step's first batch."""
    samples: NDArray[np.int64]
    tokens: NDArray[np.int64]
    flags: NDArray[np.int64]
    wait: NDArray[np.int64]
    """Time in fetches, 0 for a first batch."""
    first_wait: NDArray[np.int64]
    """Time in fetches of a first batch, 0 for other batches."""
    first_busy: NDArray[np.int64]
    """Time of a first batch, body included and phases taken out, 0 for other batches."""
    transfer: NDArray[np.int64] | None
    passes: dict[int, int]
    """When a pass began, to the wait for its first batch."""

    def between(self, start: int, stop: int) -> Sums:
        """Return steps `start` up to `stop` added up."""
        n = self.begin.size
        low = int(self.first_batch[start])
        high = int(self.first_batch[stop]) if stop < n else self.samples.size
        rows = slice(low, high)
        samples, tokens, flags = self.samples[rows], self.tokens[rows], self.flags[rows]
        wait, first_wait, busy = self.wait[rows], self.first_wait[rows], self.busy[start:stop]
        measured = (flags & FETCHED) > 0
        usual = measured & ((flags & FIRST) == 0)
        return Sums(
            steps=stop - start,
            batches=high - low,
            samples=int(samples.sum()) if int(samples.min()) >= 0 else None,
            tokens=int(tokens.sum()) if int(tokens.min()) >= 0 else None,
            busy_ns=int(busy.sum()),
            waits=int(measured.sum()),
            wait_ns=int(wait.sum()),
            first_wait_ns=int(first_wait.sum()),
            first_busy_ns=int(self.first_busy[rows].sum()),
            first_batches=int(((flags & FIRST) > 0).sum()),
            longest_wait_ns=int((wait + first_wait).max()),
            transfer_ns=None if self.transfer is None else int(self.transfer[rows].sum()),
            end_ns=int(self.end[stop - 1]),
            step_ms=busy.astype(np.float64) * _MS,
            wait_ms=wait[usual].astype(np.float64) * _MS,
        )


class Rows:
    """Batches that were marked and are not yet part of a whole step."""

    def __init__(self) -> None:
        self._rows: NDArray[np.int64] = np.empty((0, STRIDE), np.int64)
        self.invalid = 0
        """Batches whose marks made no sense: two threads in one loop."""

    @property
    def waiting(self) -> bool:
        """Whether there are batches that are not yet part of a whole step."""
        return self._rows.size > 0

    def push(self, batches: Sequence[int]) -> None:
        """Take batches, `STRIDE` integers each."""
        if batches:
            new = np.array(batches, np.int64).reshape(-1, STRIDE)
            self._rows = np.concatenate((self._rows, new)) if self._rows.size else new

    def pending(self) -> list[int]:
        """Return the batches that are there, `STRIDE` integers each."""
        return [int(value) for value in self._rows.ravel()]

    def end_passes(self, passes: Sequence[Interval]) -> None:
        """A pass that is over ends its last step, however many batches that has."""
        ends = self._rows[:, _END]
        for item in passes:
            place = int(np.searchsorted(ends, item.end, side="right")) - 1
            if place >= 0 and ends[place] >= item.begin:
                self._rows[place, _FLAGS] |= END

    def end_all(self) -> None:
        """The run is over: what is there is a step."""
        if self._rows.size:
            self._rows[-1, _FLAGS] |= END

    def take(self, events: Events, seen_ns: int) -> StepArrays | None:
        """
        Take the whole steps, None when there is none.

        Args:
            events: phases, fetches and transfers known by now: all that happened in the steps taken.

            seen_ns: end of the last step that was taken before.
        """
        whole = np.flatnonzero(self._rows[:, _FLAGS] & END)
        if not whole.size:
            return None
        rows, self._rows = self._rows[: whole[-1] + 1], self._rows[whole[-1] + 1 :].copy()
        cover = Cover(events.blocked())
        rows = self._sound(rows, cover, seen_ns)
        ends = np.flatnonzero(rows[:, _FLAGS] & END)
        if not ends.size:
            return None
        return _steps(rows[: ends[-1] + 1], ends, events, cover)

    def _sound(self, rows: NDArray[np.int64], cover: Cover, seen_ns: int) -> NDArray[np.int64]:
        """Leave out what two threads mixed up (counted), and what was fetched inside a phase."""
        times = rows[:, : _END + 1].ravel()
        if not cover and times[0] >= seen_ns and bool((times[1:] >= times[:-1]).all()):
            return rows
        begin, handed, end = rows[:, _BEGIN], rows[:, _HANDED], rows[:, _END]
        before = np.maximum.accumulate(np.concatenate(([seen_ns], end[:-1])))
        sound = (begin >= before) & (handed >= begin) & (end >= handed)
        self.invalid += int((~sound).sum())
        sound &= ~cover.inside(begin)
        return rows if sound.all() else rows[sound]


def _steps(rows: NDArray[np.int64], ends: NDArray[np.int64], events: Events, cover: Cover) -> StepArrays:
    begin, handed, end, samples, tokens, flags = rows.T.copy()
    wait = handed - begin
    if cover:
        wait -= cover.before(handed) - cover.before(begin)
    first = (flags & FIRST) > 0
    passes = dict(zip(begin[first].tolist(), wait[first].tolist(), strict=True))
    _add_fetches(events.data, begin, end, flags, wait)
    busy, before_end = end - begin, np.zeros(end.size, np.int64)
    if cover:
        before_end = cover.before(end)
        busy -= before_end - cover.before(begin)
    starts = np.concatenate(([0], ends[:-1] + 1))
    return StepArrays(
        begin=begin[starts],
        end=end[ends],
        busy=np.add.reduceat(busy, starts),
        blocked=before_end[ends],
        first_batch=starts,
        samples=samples,
        tokens=tokens,
        flags=flags,
        wait=np.where(first, 0, wait),
        first_wait=np.where(first, wait, 0),
        first_busy=np.where(first, busy, 0),
        transfer=_transfers(events.transfers, end),
        passes=passes,
    )


def _add_fetches(
    fetches: Sequence[Interval],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    flags: NDArray[np.int64],
    wait: NDArray[np.int64],
) -> None:
    """Give each fetch to the batch in or before whose body it lies; a batch begins with its first fetch."""
    if not fetches:
        return
    starts, stops = _arrays(fetches)
    place = np.searchsorted(end, starts, side="right")
    known = place < end.size
    place, starts, stops = place[known], starts[known], stops[known]
    np.minimum.at(begin, place, starts)
    np.add.at(wait, place, np.minimum(stops, end[place]) - starts)
    flags[place] |= FETCHED


def _transfers(transfers: Sequence[Interval], end: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if not transfers:
        return None
    starts, stops = _arrays(transfers)
    place = np.searchsorted(end, starts, side="right")
    known = place < end.size
    moved = np.zeros_like(end)
    np.add.at(moved, place[known], (stops - starts)[known])
    return moved


def _arrays(intervals: Sequence[Interval]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts = np.array([item.begin for item in intervals], np.int64)
    return starts, np.array([item.end for item in intervals], np.int64)


class Cover:
    """Intervals that do not overlap, asked about for many moments at once."""

    def __init__(self, intervals: Sequence[Interval]) -> None:
        """
        Args:
            intervals: in order.
        """
        self._starts, stops = _arrays(intervals)
        self._lengths = stops - self._starts
        self._sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(self._lengths)))

    def __bool__(self) -> bool:
        """Whether there is any interval."""
        return bool(self._starts.size)

    def before(self, moments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how much of the time before each moment is covered."""
        if not self._starts.size:
            return np.zeros_like(moments)
        place = np.searchsorted(self._starts, moments, side="right") - 1
        inside = np.minimum(moments - self._starts[place], self._lengths[place])
        covered: NDArray[np.int64] = np.where(place >= 0, self._sums[place] + inside, 0)
        return covered

    def inside(self, moments: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which moments lie inside an interval, its ends not included."""
        if not self._starts.size:
            return np.zeros(moments.shape, np.bool_)
        place = np.searchsorted(self._starts, moments, side="left") - 1
        found: NDArray[np.bool_] = (place >= 0) & (moments - self._starts[place] < self._lengths[place])
        return found
