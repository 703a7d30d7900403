"""
What a long run holds in memory: measured in a process of its own, `python memory.py STEPS`.

The clock of the run is made up, half a millisecond a step, so that a million steps close as many windows and
write as many points as they would in eight minutes.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

import psutil
from benchmarks.loops import Loader

from trackperf.collector import Collector
from trackperf.config import settings_from
from trackperf.delivery import Delivery
from trackperf.metrics import CATALOGUE, full_key
from trackperf.record import Point, RunInfo, RunSummary, Status
from trackperf.registry import load_sink
from trackperf.run import Run
from trackperf.testing import StallingSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.report import Report
    from benchmarks.rows import Sizes

__all__ = ["long_runs"]

_SECTION: Final = "Memory"
_RUNS: Final = 3
_PARTS: Final = 20
_SENT: Final = 15_000
"""Points for a sink that stalls: more than are held for it."""

_WINDOW: Final = 3_900
"""Steps at a time: just not a whole window of two seconds, so that each time closes one."""

_CALL_NS: Final = 250_000
"""Time that passes with each look at the clock; a step looks twice."""


def long_runs(report: Report, sizes: Sizes) -> None:
    """Measure in a process of its own, which nothing else has left its traces in."""
    steps = sizes.of(1_000_000, least=1000)
    command = [sys.executable, str(Path(__file__)), str(steps)]
    times = min(_RUNS, sizes.repeats)
    runs = [subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600) for _ in range(times)]
    every = [json.loads(run.stdout) for run in runs]
    told = every[0]
    # One arena that the allocator takes late moves a single run by hundreds of KiB.
    resident = statistics.median(one["resident"] for one in every) / 1024
    traced = statistics.median(one["traced"] for one in every) / 1024
    report.figure(_SECTION, f"resident memory, more by each 100 000 of {steps} steps", resident, "KiB")
    report.figure(_SECTION, "held by Python, more by each 100 000 steps", traced, "KiB")
    report.figure(_SECTION, "held for a stalled sink", told["stalled"] / 1024**2, "MiB")
    report.figure(_SECTION, "points dropped for it, all of them counted", told["dropped"], "points")
    report.at_most("memory: resident, more by each 100 000 steps", resident, 64.0, "KiB")
    report.at_most("memory: held by Python, more by each 100 000 steps", traced, 64.0, "KiB")
    report.at_most("memory: held for a stalled sink", told["stalled"] / 1024**2, 16.0, "MiB")
    report.at_most("memory: points lost and not counted", told["uncounted"], 0.0, "points")


def _growth(steps: int, measure: Callable[[], int]) -> float:
    """
    Return by how much a measure grows in 100 000 steps.

    The first three fifths of the steps are left out: until then quantiles still fill their bounded store.
    """
    tick = itertools.count(1, _CALL_NS)
    held: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_from({"sink": "tensorboard", "dir": folder, "enabled": True}, {})
        run = Run(settings, [load_sink("tensorboard")], clock=tick.__next__, wall=lambda: next(tick) / 1e9)
        perf = Collector(run)
        run.reporter.start()
        batches = iter(perf.steps(Loader()))
        for _ in range(_PARTS):
            _go_on(perf, batches, steps // _PARTS)
            gc.collect()
            held.append(measure())
        perf.finish()
    held = held[3 * _PARTS // 5 :]
    third = len(held) // 3
    grown = statistics.median(held[-third:]) - statistics.median(held[:third])
    return grown / ((len(held) - third) * steps / _PARTS) * 100_000


def _go_on(perf: Collector, batches: Iterator[Any], steps: int) -> None:
    """Take steps, a window at a time: what counts is what stays, not what waits for the reporter."""
    while steps > 0:
        for _ in itertools.islice(batches, min(steps, _WINDOW)):
            pass
        perf.flush(30.0)
        steps -= _WINDOW


def _stalled(sent: int) -> dict[str, float]:
    """Return what is held for a sink that does not come back, and what became of `sent` points for it."""
    logging.getLogger("trackperf").setLevel(logging.CRITICAL)
    sink = StallingSink()
    delivery = Delivery([sink])
    delivery.start()
    delivery.open(RunInfo(run_id="0" * 32, name="run", dir=".", started_at=0.0))
    delivery.write(_point(0))
    sink.stalled.wait(30.0)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for step in range(1, sent):
        delivery.write(_point(step))
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    sink.release.set()
    delivery.flush(30.0)
    delivery.close(RunSummary(steps=sent, samples=None), Status.FINISHED)
    lost = delivery.dropped_points
    return {"stalled": held, "dropped": lost, "uncounted": sent - len(sink.points) - lost}


def _point(step: int) -> Point:
    keys = itertools.islice(CATALOGUE, 30)
    values = {full_key(key, "perf"): step + place / 7 for place, key in enumerate(keys)}
    return Point(step=step, wall_time=float(step), values=values)


def _main() -> None:
    logging.getLogger("trackperf").setLevel(logging.ERROR)
    steps = int(sys.argv[1])
    process = psutil.Process()
    told = {"resident": _growth(steps, lambda: process.memory_info().rss)}
    tracemalloc.start()
    told["traced"] = _growth(max(1000, steps // 4), lambda: tracemalloc.get_traced_memory()[0])
    told |= _stalled(min(steps, _SENT))
    print(json.dumps(told))


if __name__ == "__main__":
    _main()
