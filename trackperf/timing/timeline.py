"""Folds marks into windows: pure arithmetic, the same for the same marks, with no clock and no thread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from trackperf.timing.events import Events, overlap
from trackperf.timing.ledger import Ledger, added
from trackperf.timing.marks import END, STRIDE, Batch, Drained, Lost
from trackperf.timing.rows import Rows, StepArrays, Sums
from trackperf.timing.windows import Totals, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["WINDOW_NS", "Timeline"]

WINDOW_NS: Final = 2_000_000_000
"""Length of a window, phases taken out: it closes at the end of the step that reaches it."""

_SHORT_PHASE: Final = 20
_SHORT_WINDOW: Final = 4


class Timeline:
    """
    One run's steps, phases and windows so far.

    A window closes when it is `window_ns` long, at the end of the warm-up, and where a phase begins, unless
    the phase is shorter than a twentieth of a window or the window than a quarter: else a phase in every
    step would make every step a window.

    Not safe for several threads at once: whoever feeds it holds a lock.
    """

    def __init__(self, *, begin_ns: int, warmup_steps: int, window_ns: int = WINDOW_NS) -> None:
        """
        Args:
            begin_ns: when the run began, on the clock of the marks.

            warmup_steps: steps of this process that are warm-up.

            window_ns: length of a window.
        """
        self.warmup_steps = warmup_steps
        self.window_ns = window_ns
        self.due_ns: int | None = None
        """About when the open window is due; None when none is open."""
        self.bundled = 0
        """Batches that are in the sums but not in the quantiles (`marks.Lost`)."""
        self._ledger = Ledger(begin_ns)
        self._events = Events()
        self._rows = Rows()
        self._window: Window | None = None
        self._window_start = 0
        self._seen_ns = begin_ns
        self._blocked_ns = 0
        self._cut_ns = begin_ns - 1
        self._first_waits: dict[int, int] = {}
        self._passes = [0, 0]
        self._recent: StepArrays | None = None
        self._recent_before = (0, 0)

    @property
    def steps(self) -> int:
        """Finished steps, earlier parts of a resumed run included."""
        return self._ledger.base.steps + self._ledger.steps

    @property
    def own_steps(self) -> int:
        """Finished steps of this process."""
        return self._ledger.steps

    @property
    def begun(self) -> bool:
        """Whether any batch of this process was fed."""
        return self._ledger.steps > 0 or self._rows.waiting

    @property
    def invalid(self) -> int:
        """Batches that were not counted since their marks made no sense: two threads in one loop."""
        return self._rows.invalid

    def resume(self, base: Totals) -> None:
        """Go on from where an earlier part of the run ended; for a timeline without steps."""
        self._ledger.resume(base)

    def feed(
        self, drained: Drained, phases: Sequence[str], now_ns: int, idle_ns: int | None = None
    ) -> list[Window]:
        """
        Take marks and return the windows that they close, in order.

        Args:
            drained: what was taken out of the marks.

            phases: names of phases by their place.

            now_ns: the time after all of these marks.

            idle_ns: a moment before them at which no loop was open: no step began before it and ends later.
        """
        closed: list[Window] = []
        for lost in drained.lost:
            self._bundle(lost)
        self._events.feed(drained.events, phases)
        self._rows.push(drained.batches)
        self._rows.end_passes(self._events.passes)
        self._fold(closed, now_ns, idle_ns)
        target = self._window or (closed[-1] if closed else None)
        if target is not None:
            target.cost_ns += drained.cost_ns
            target.probes += drained.probes
        return closed

    def finish(self, now_ns: int, open_batch: Batch | None = None) -> list[Window]:
        """
        End the run and return the windows that are left.

        Args:
            now_ns: when it ended.

            open_batch: a batch whose body ended with the run.
        """
        closed: list[Window] = []
        if open_batch is not None:
            self._rows.push(_row(open_batch, now_ns))
        self._rows.end_all()
        self._fold(closed, now_ns)
        self._close(closed)
        self._events.split_at(now_ns)
        self._seen_ns = max(self._seen_ns, now_ns)
        return closed

    def cut(self) -> list[Window]:
        """Close the open window before its time, if there is one."""
        closed: list[Window] = []
        self._close(closed)
        return closed

    def totals(self) -> Totals:
        """Return where the run stands at the end of its last finished step (at its end, when finished)."""
        return self._snapshot(self._seen_ns)

    def totals_at(self, now_ns: int, open_batch: Batch | None) -> Totals:
        """
        Return where the run stands now, a body that runs counted as a finished step.

        That is what belongs in a checkpoint: it is saved in a step's body, after the update.
        """
        self._events.split_at(now_ns)
        totals = self._snapshot(now_ns)
        rows = self._rows.pending() + ([] if open_batch is None else _row(open_batch, now_ns))
        blocked = self._events.blocked()
        busy = steps = 0
        samples, tokens = totals.samples, totals.tokens
        for place in range(0, len(rows), STRIDE):
            begin, _, end, row_samples, row_tokens, flags = rows[place : place + STRIDE]
            busy += end - begin - overlap(blocked, begin, end)
            steps += flags & END
            samples = _plus(samples, row_samples)
            tokens = _plus(tokens if tokens is not None or totals.steps else 0, row_tokens)
        phase_ns = dict(totals.phase_ns)
        name = self._phase()
        phase_ns[name] = phase_ns.get(name, 0) + busy
        phase_ns["other"] = phase_ns.get("other", 0) - busy
        return replace(totals, steps=totals.steps + steps, samples=samples, tokens=tokens, phase_ns=phase_ns)

    def place(self, at_ns: int) -> tuple[int, int] | None:
        """
        Return (steps, training ns) at a moment; a moment inside a body counts as that step's end.

        None when it lies after the last step that was fed: ask again later. A moment before the
        steps fed last is placed at their beginning.
        """
        recent = self._recent
        if recent is None or at_ns > int(recent.end[-1]):
            return None
        steps, train_ns = self._recent_before
        index = int(np.searchsorted(recent.end, at_ns, side="left"))
        finished = index + (1 if int(recent.begin[index]) <= at_ns else 0)
        return steps + finished, train_ns + int(recent.busy[:finished].sum())

    def _fold(self, closed: list[Window], now_ns: int, idle_ns: int | None = None) -> None:
        """Walk over the whole steps that are there, one window, or part of one, at a time."""
        arrays = self._rows.take(self._events, self._seen_ns)
        cuts = self._cuts(now_ns)
        if arrays is not None:
            self._ledger.begin_steps(int(arrays.begin[0]))
            self._first_waits.update(arrays.passes)
            self._recent, self._recent_before = arrays, (self.steps, self._ledger.train_ns)
            active = arrays.end - arrays.blocked - self._blocked_ns
            place, n = 0, arrays.end.size
            while place < n:
                self._open(arrays, active, place)
                stop, due = self._stop(active, place)
                cut = self._next_cut(cuts, arrays.end, place, stop)
                until = stop if cut is None else cut
                if until > place:
                    self._add(arrays.between(place, until))
                if cut is not None:
                    self._cut_ns = cuts.pop(0)
                    due = self._long_enough()
                if due:
                    self._close(closed)
                place = until
        self._end_passes(self._window or (closed[-1] if closed else None))
        self._late_cuts(cuts, closed)
        self._forget(idle_ns if idle_ns is not None and not self._rows.waiting else self._seen_ns)

    def _open(self, arrays: StepArrays, active: NDArray[np.int64], place: int) -> None:
        if self._window is None:
            begin = int(arrays.begin[place])
            self._window = Window(phase=self._phase(), start_ns=begin, end_ns=begin, totals=self._ledger.base)
            self._window_start = int(active[place] - arrays.busy[place])
            self.due_ns = begin + self.window_ns

    def _stop(self, active: NDArray[np.int64], place: int) -> tuple[int, bool]:
        """Return up to which step the open window reaches, and whether it is complete there."""
        stop, due = active.size, False
        left = self.warmup_steps - self._ledger.steps
        if 0 < left <= stop - place:
            stop, due = place + left, True
        complete = self._window_start + self.window_ns
        reached = place + int(np.searchsorted(active[place:stop], complete, side="left"))
        return (reached + 1, True) if reached < stop else (stop, due)

    def _cuts(self, now_ns: int) -> list[int]:
        """Return where phases begin that are long enough to close a window, in order."""
        least = self.window_ns // _SHORT_PHASE
        return [
            item.begin
            for item in self._events.blocked()
            if item.begin > self._cut_ns and min(item.end, now_ns) - item.begin >= least
        ]

    def _next_cut(self, cuts: list[int], ends: NDArray[np.int64], place: int, stop: int) -> int | None:
        """Return before which of the steps `place` up to `stop` a phase begins, None when at none."""
        while cuts:
            before = int(np.searchsorted(ends, cuts[0], side="right"))
            if before > place or (before == place and self._window is not None and self._window.steps):
                return before if before < stop else None
            self._cut_ns = cuts.pop(0)
        return None

    def _late_cuts(self, cuts: list[int], closed: list[Window]) -> None:
        """A phase began after the last step: the window ends there."""
        for cut in cuts:
            self._cut_ns = cut
            if self._long_enough():
                self._close(closed)

    def _long_enough(self) -> bool:
        window = self._window
        return window is not None and window.end_ns - window.start_ns >= self.window_ns // _SHORT_WINDOW

    def _add(self, sums: Sums) -> None:
        window = self._window
        assert window is not None  # noqa: S101 - `_open` came before
        self._count(window, sums.steps, sums.samples, sums.tokens, sums.busy_ns)
        window.batches += sums.batches
        window.waits += sums.waits
        window.wait_ns += sums.wait_ns
        window.first_wait_ns += sums.first_wait_ns
        window.first_busy_ns += sums.first_busy_ns
        window.first_batches += sums.first_batches
        window.longest_wait_ns = max(window.longest_wait_ns, sums.longest_wait_ns)
        if sums.transfer_ns is not None:
            window.transfer_ns = (window.transfer_ns or 0) + sums.transfer_ns
        window.step_ms.add(sums.step_ms)
        window.wait_ms.add(sums.wait_ms)
        window.end_ns = self._seen_ns = sums.end_ns

    def _bundle(self, lost: Lost) -> None:
        """Count batches of which only sums are left."""
        self.bundled += lost.batches
        self._ledger.begin_steps(lost.start_ns)
        if self._window is None:
            self._window = Window(
                phase=self._phase(), start_ns=lost.start_ns, end_ns=lost.end_ns, totals=self._ledger.base
            )
            self._window_start = lost.start_ns - self._blocked_ns
        busy = lost.end_ns - lost.start_ns
        self._count(
            self._window,
            lost.steps,
            lost.samples if lost.samples >= 0 else None,
            lost.tokens if lost.tokens >= 0 else None,
            busy,
        )
        self._window.batches += lost.batches
        self._window.waits += lost.batches
        self._window.wait_ns += lost.wait_ns
        self._window.end_ns = self._seen_ns = lost.end_ns

    def _count(
        self, window: Window, steps: int, samples: int | None, tokens: int | None, busy_ns: int
    ) -> None:
        self._ledger.count(window.phase, steps=steps, samples=samples, tokens=tokens, busy_ns=busy_ns)
        window.steps += steps
        window.samples = added(window.samples, samples)
        window.tokens = added(window.tokens, tokens)
        window.busy_ns += busy_ns

    def _close(self, closed: list[Window]) -> None:
        window, self._window, self.due_ns = self._window, None, None
        if window is not None and window.steps:
            window.totals = self._snapshot(window.end_ns)
            closed.append(window)

    def _end_passes(self, window: Window | None) -> None:
        """Count passes over the loader that ended, in a window that is at hand."""
        if window is None:
            return
        for item in self._events.passes:
            first_wait = self._first_waits.pop(item.begin, None)
            if first_wait is not None:
                window.passes_ns += item.end - item.begin
                window.passes_first_ns += first_wait
        self._events.passes.clear()

    def _forget(self, until_ns: int) -> None:
        """Add up what no later step and no later snapshot goes behind."""
        until_ns = max(until_ns, self._seen_ns)
        self._blocked_ns += self._events.forget(phases_until=until_ns, fetches_until=self._seen_ns)
        open_since = None if self._window is None else self._window.start_ns
        self._ledger.fold(self._events.segments, open_since)

    def _phase(self) -> Literal["warmup", "train"]:
        return "warmup" if self._ledger.steps < self.warmup_steps else "train"

    def _snapshot(self, at_ns: int) -> Totals:
        return self._ledger.totals(at_ns, self._events.segments)


def _row(batch: Batch, end_ns: int) -> list[int]:
    return [batch.fetch_ns, batch.handed_ns, end_ns, batch.samples, batch.tokens, batch.flags]


def _plus(total: int | None, value: int) -> int | None:
    return None if total is None or value < 0 else total + value
