"""All in: what a loop of half a millisecond a step loses on the wall clock, on whatever thread."""

from __future__ import annotations

import itertools
import statistics
from importlib import import_module
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

from benchmarks.loops import Loader, begin
from benchmarks.peers import SERIES
from benchmarks.rows import BARE, Row, between

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.report import Report
    from benchmarks.rows import Sizes

__all__ = ["all_in"]

_STEP_NS = 500_000
_INTERVAL_S = 0.5
_OURS = "trackperf, TensorBoard"
_THEIRS = "SummaryWriter.add_scalar x 8"


def all_in(report: Report, folder: Path, sizes: Sizes) -> None:
    """
    Measure steps that keep the interpreter busy, so that other threads' work is in their way.

    Each turn of ours closes a window, reads the machine and writes a point of some thirty series, and goes on
    for long enough that all of it happens within the turn: nearly three times as often as a run of such steps
    does by itself.
    """
    section = "All in: 0.5 ms of Python a step, wall time over the bare loop"
    loader, numbers = Loader(), itertools.count()
    writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "all-in"))
    perf = begin("tensorboard", folder, interval_s=_INTERVAL_S)

    def bare(n: int) -> None:
        for _ in loader.of(n):
            _work()

    def ours(n: int) -> None:
        for _ in perf.steps(loader.of(n)):
            _work()

    def theirs(n: int) -> None:
        for _ in loader.of(n):
            _work()
            step = next(numbers)
            for name in SERIES:
                writer.add_scalar(name, 0.5, step)

    steps, short = sizes.of(1_500), sizes.of(250)
    bares, cost = between(
        Row(name=BARE, run=bare, steps=steps),
        Row(name=_OURS, run=ours, steps=steps, settle=perf.flush),
        sizes.repeats,
    )
    _, dear = between(
        Row(name=BARE, run=bare, steps=short),
        Row(name=_THEIRS, run=theirs, steps=short, settle=writer.flush),
        sizes.repeats,
    )
    perf.finish()
    writer.close()
    mine, other = statistics.median(cost), statistics.median(dear)
    report.figure(section, BARE, statistics.median(bares) / 1e3, "us")
    report.figure(section, _OURS, mine / 1e3, "us")
    report.figure(section, _THEIRS, other / 1e3, "us")
    report.at_most("all in: us a step", mine / 1e3, 25.0, "us")
    report.at_most("all in: share of SummaryWriter", mine / other, 0.1, "x")


def _work() -> None:
    """
    Keep the interpreter busy for half a millisecond of this thread's CPU time.

    Not a fixed amount of work: on a shared machine that takes a tenth more or less from one second to the
    next, which is more than what is looked for. While another thread holds the interpreter this one's CPU
    time stands still, so that what the others take is added.
    """
    until = thread_time_ns() + _STEP_NS
    while thread_time_ns() < until:
        pass
