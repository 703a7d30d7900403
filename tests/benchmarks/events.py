"""A step whose device is timed: by events that do nothing, so that what is left is trackperf's own part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.loops import NothingSink, begin
from benchmarks.rows import Row

from trackperf.timing.device import DeviceTimeline

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.loops import Loader
    from benchmarks.rows import Sizes

    from trackperf import Collector

__all__ = ["CALLS", "TIMED", "timed_rows", "timed_run"]

TIMED = "perf.steps(loader), device timed"
CALLS = "the calls of events alone"


class _NoEvent:
    """Has the methods of `torch.cuda.Event` and no device behind them."""

    __slots__ = ()

    def record(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Say that the device has passed it."""
        return True

    def elapsed_time(self, end: object) -> float:
        """Return a millisecond."""
        return 1.0


def _not_capturing() -> bool:
    return False


def timed_run(folder: Path) -> Collector:
    """Begin a run whose training uses a device of which every event has been passed."""
    perf = begin(NothingSink(), folder)
    perf._find = lambda marks: DeviceTimeline(
        marks, new_event=_NoEvent, capturing=_not_capturing, device=lambda: 0
    )
    perf._find_device()
    return perf


def timed_rows(loader: Loader, timed: Collector, sizes: Sizes) -> list[Row]:
    """Return the loop with events, and one that makes the same calls of them and nothing else."""
    event = _NoEvent()

    def run(n: int) -> None:
        for _ in timed.steps(loader.of(n)):
            pass

    def calls(n: int) -> None:
        for _ in loader.of(n):
            _not_capturing()
            event.record()
            event.query()
            event.elapsed_time(event)
            event.elapsed_time(event)
            _not_capturing()
            event.record()

    steps = sizes.of(50_000)
    return [
        Row(name=TIMED, run=run, steps=steps, settle=timed.flush),
        Row(name=CALLS, run=calls, steps=steps),
    ]
