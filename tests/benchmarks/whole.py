"""All in: what a loop of half a millisecond a step loses on the wall clock, on whatever thread."""

from __future__ import annotations

import itertools
from functools import partial
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from benchmarks.loops import Loader, begin
from benchmarks.peers import SERIES
from benchmarks.rows import BARE, Row, in_turns, median, median_ratio

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.report import Report
    from benchmarks.rows import Sizes

__all__ = ["all_in"]

_STEP_NS = 500_000
_OURS = "trackperf, TensorBoard"
_THEIRS = "SummaryWriter.add_scalar x 8"


def all_in(report: Report, folder: Path, sizes: Sizes) -> None:
    """
    Measure steps that keep the interpreter busy, so that other threads' work is in their way.

    Each repeat of ours closes a window and writes a point of some thirty series: four times as often as a run
    of such steps does.
    """
    section = "All in: 0.5 ms of Python a step, wall time over the bare loop"
    work, steps = _half_a_millisecond(), sizes.of(1_000)
    writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "all-in"))
    loader, numbers = Loader(), itertools.count()
    perf = begin("tensorboard", folder, interval_s=0.5)

    def bare(n: int) -> None:
        for _ in loader.of(n):
            work()

    def ours(n: int) -> None:
        for _ in perf.steps(loader.of(n)):
            work()

    def theirs(n: int) -> None:
        for _ in loader.of(n):
            work()
            step = next(numbers)
            for name in SERIES:
                writer.add_scalar(name, 0.5, step)

    rows = [
        Row(name=BARE, run=bare, steps=steps),
        Row(name=_OURS, run=ours, steps=steps),
        Row(name=_THEIRS, run=theirs, steps=steps, settle=writer.flush),
    ]
    costs = in_turns(rows, sizes.repeats, perf_counter_ns)
    perf.finish()
    writer.close()
    for row in rows:
        report.figure(section, row.name, median(costs, row.name) / 1e3, "us")
    report.at_most("all in: us a step", median(costs, _OURS) / 1e3, 25.0, "us")
    report.at_most("all in: share of SummaryWriter", median_ratio(costs, _OURS, _THEIRS), 0.1, "x")


def _half_a_millisecond() -> Callable[[], object]:
    """Return work of a fixed size that takes about as long here."""
    rounds = 1000
    for _ in range(5):
        rounds = max(10, round(rounds * _STEP_NS / min(_time(rounds) for _ in range(20))))
    return partial(_work, rounds)


def _work(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number & 7
    return total


def _time(rounds: int) -> int:
    begin_ns = perf_counter_ns()
    _work(rounds)
    return max(1, perf_counter_ns() - begin_ns)
