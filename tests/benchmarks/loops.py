"""The loops of trackperf that are measured, and what they loop over."""

from __future__ import annotations

import itertools
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from benchmarks.reference import Stopwatch, collect
from benchmarks.rows import BARE, Row

import trackperf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.rows import Sizes

    from trackperf import Alert, Collector, Point, RunInfo, RunSummary, Sink, Status

__all__ = ["Loader", "NothingSink", "begin", "own_rows"]


class NothingSink:
    """Takes everything and does nothing with it."""

    name = "nothing"

    def open(self, run: RunInfo) -> None:
        """Do nothing."""

    def write(self, points: Sequence[Point]) -> None:
        """Do nothing."""

    def alert(self, alert: Alert) -> None:
        """Do nothing."""

    def close(self, summary: RunSummary, status: Status) -> None:
        """Do nothing."""


class Loader:
    """Hands out one batch of images and labels again and again, at no cost of its own."""

    def __init__(self, steps: int | None = None) -> None:
        """
        Args:
            steps: length of a pass; endless when None.
        """
        import torch

        self.batch = (torch.zeros(32, 3, 8, 8), torch.zeros(32, dtype=torch.int64))
        self.steps = steps

    def of(self, steps: int) -> Loader:
        """Return a loader of the same batch with another length."""
        made = object.__new__(Loader)
        made.batch, made.steps = self.batch, steps
        return made

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass."""
        return (
            itertools.repeat(self.batch) if self.steps is None else itertools.repeat(self.batch, self.steps)
        )


def begin(sink: str | Sink, folder: Path, interval_s: float | None = None) -> Collector:
    """Begin a run as a user does; its alerts are judged as in life."""
    return trackperf.init(sink=sink, dir=folder, interval_s=interval_s, progress=False, enabled=True)


def own_rows(
    loader: Loader, quiet: Collector, written: Collector, away: Collector, hanging: Collector, sizes: Sizes
) -> list[Row]:
    """
    Return the rows that need no other package: the floor's and trackperf's.

    Args:
        loader: what to loop over.

        quiet: a run that nothing is written of.

        written: a run that TensorBoard's event file is written of.

        away: a run whose tracker cannot be reached.

        hanging: a run whose tracker does not come back from a call.

        sizes: how much to measure.
    """
    steps = sizes.of(50_000)
    return [
        *_floor_rows(loader, steps),
        _steps_row("perf.steps(loader)", loader, quiet, steps),
        _steps_row("perf.steps(loader), TensorBoard", loader, written, steps),
        _steps_row("perf.steps(loader), tracker away", loader, away, steps, settled=False),
        _steps_row("perf.steps(loader), tracker hangs", loader, hanging, steps, settled=False),
        *_phase_rows(loader, quiet, sizes.of(8_000)),
    ]


def _floor_rows(loader: Loader, steps: int) -> list[Row]:
    full: deque[Any] = deque(maxlen=2)

    def bare(n: int) -> None:
        for _ in loader.of(n):
            pass

    def clocks(n: int) -> None:
        for _ in loader.of(n):
            perf_counter_ns()
            perf_counter_ns()

    def reference(n: int) -> None:
        for _ in collect(loader.of(n), full):
            pass

    return [
        Row(name=BARE, run=bare, steps=steps),
        Row(name="two clock readings", run=clocks, steps=steps),
        Row(name="reference collector", run=reference, steps=steps),
    ]


def _steps_row(name: str, loader: Loader, perf: Collector, steps: int, *, settled: bool = True) -> Row:
    def run(n: int) -> None:
        for _ in perf.steps(loader.of(n)):
            pass

    def settle() -> None:
        # A tracker that is not there is not waited for: a tenth of a second is enough for our own part.
        perf.flush(30.0 if settled else 0.1)

    return Row(name=name, run=run, steps=steps, settle=settle)


def _phase_rows(loader: Loader, perf: Collector, steps: int) -> list[Row]:
    stopwatch = Stopwatch()

    def watched(n: int) -> None:
        for _ in loader.of(n):
            with stopwatch:
                pass

    def phase(n: int) -> None:
        for _ in loader.of(n):
            with perf.phase("eval"):
                pass

    def settle() -> None:
        # Phases are put in order with the steps around them: none may be left to the next row.
        for _ in perf.steps(loader.of(10)):
            pass
        perf.flush()

    return [
        Row(name="reused stopwatch", run=watched, steps=steps),
        Row(name="with perf.phase(...)", run=phase, steps=steps, settle=settle),
    ]
