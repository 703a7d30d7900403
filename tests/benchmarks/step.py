"""What a step costs the training thread, in the first steps and in late ones."""

from __future__ import annotations

import itertools
import statistics
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, Final

from benchmarks.events import CALLS, TIMED, timed_rows, timed_run
from benchmarks.loops import Loader, NothingSink, begin, own_rows
from benchmarks.peers import LIGHTNING, ONE_LOGGER, peer_rows
from benchmarks.rows import in_turns, median, median_ratio

from trackperf.testing import AwaySink, StallingSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.report import Report
    from benchmarks.rows import Costs, Row, Sizes

__all__ = ["late_steps", "step_costs"]

_OURS: Final = "perf.steps(loader)"
_WRITTEN: Final = "perf.steps(loader), TensorBoard"


def step_costs(report: Report, folder: Path, sizes: Sizes) -> Row | None:
    """Measure all loops beside each other; return nv-one-logger's, which `late_steps` goes on with."""
    section = "A step in the training thread: its CPU time, the bare loop taken off"
    loader = Loader()
    quiet, written = begin(NothingSink(), folder), begin("tensorboard", folder)
    stall, timed = StallingSink(), timed_run(folder)
    away, hanging = begin(AwaySink(), folder), begin(stall, folder)
    peers = peer_rows(loader, folder, sizes, report)
    rows = own_rows(loader, quiet, written, away, hanging, sizes) + timed_rows(loader, timed, sizes) + peers
    costs = in_turns(rows, sizes.repeats)
    stall.release.set()
    for perf in (quiet, written, timed, away, hanging):
        perf.finish()
    for row in rows:
        report.figure(section, row.name, median(costs, row.name) / 1e3, "us")
    _floors(report, costs)
    return next((row for row in peers if row.name == ONE_LOGGER), None)


def _floors(report: Report, costs: Costs) -> None:
    times = median_ratio(costs, _OURS, "reference collector")
    report.at_most("perf.steps: times the reference collector", times, 3.0, "x")
    if LIGHTNING in costs:
        share = median_ratio(costs, _OURS, LIGHTNING)
        report.at_most("perf.steps: share of Lightning's update + compute", share, 0.35, "x")
    report.at_most(
        "perf.steps: with TensorBoard, times without", median_ratio(costs, _WRITTEN, _OURS), 1.25, "x"
    )
    for name in ("tracker away", "tracker hangs"):
        times = median_ratio(costs, f"perf.steps(loader), {name}", _OURS)
        report.at_most(f"perf.steps: {name}, times without", times, 1.25, "x")
    own = [timed - calls for timed, calls in zip(costs[TIMED], costs[CALLS], strict=True)]
    device = median_ratio({TIMED: own, _OURS: costs[_OURS]}, TIMED, _OURS)
    report.at_most(
        "perf.steps: with a device timed, its events' calls taken off, times without", device, 2.0, "x"
    )
    phase = median_ratio(costs, "with perf.phase(...)", "reused stopwatch")
    report.at_most("perf.phase: times a reused stopwatch", phase, 2.2, "x")


def late_steps(
    report: Report, folder: Path, sizes: Sizes, one_logger: Row | None, peer_late: int = 20_000
) -> None:
    """
    Compare late steps with early ones.

    Args:
        report: what to tell.

        folder: where runs may write.

        sizes: how much to measure.

        one_logger: nv-one-logger's loop, some steps old.

        peer_late: which of its steps are late ones: it takes the longer the more came before, so that as many
            as ours have would take minutes.
    """
    section = "Late steps: their cost over that of early ones"
    early, late = sizes.of(2_000), sizes.of(200_000)
    ratio = statistics.median(_late_over_early(folder, early, late) for _ in range(sizes.repeats))
    report.figure(section, f"perf.steps, step {late} over {early}", ratio, "x")
    report.at_most(f"perf.steps: step {late} over step {early}", ratio, 1.2, "x")
    if one_logger is not None:
        early, late = sizes.of(2_000), sizes.of(peer_late)
        blocks = 10
        length = max(2, early // 20)
        first = statistics.median(_block(one_logger, length) for _ in range(blocks))
        one_logger.run(max(0, late - early))
        last = statistics.median(_block(one_logger, length) for _ in range(blocks))
        report.figure(section, f"nv-one-logger, step {late} over {early}", last / first, "x")


def _late_over_early(folder: Path, early: int, late: int) -> float:
    perf, loader = begin(NothingSink(), folder), Loader()
    ours, bare = iter(perf.steps(loader)), iter(loader)
    _go(ours, early // 2)
    perf.flush()
    first = _go(ours, early) - _go(bare, early)
    _go(ours, late - 2 * early)
    perf.flush()
    last = _go(ours, early) - _go(bare, early)
    perf.finish()
    return last / first


def _go(batches: Iterator[Any], steps: int) -> float:
    begin_ns = thread_time_ns()
    for _ in itertools.islice(batches, steps):
        pass
    return (thread_time_ns() - begin_ns) / max(1, steps)


def _block(row: Row, steps: int) -> float:
    begin_ns = thread_time_ns()
    row.run(steps)
    return (thread_time_ns() - begin_ns) / steps
