"""Values into an event file, each second."""

from __future__ import annotations

import statistics
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from benchmarks.peers import SERIES

from trackperf.record import Point, RunInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.report import Report
    from benchmarks.rows import Sizes

__all__ = ["points", "write_ours", "write_theirs", "write_values"]

_SECTION: Final = "Into an event file, events of eight values"
_WALL: Final = 1.7e9


def write_values(report: Report, folder: Path, sizes: Sizes) -> None:
    """Measure our sink beside `SummaryWriter`, from the first call until all is in the file."""
    made, few = points(sizes.of(16_000)), sizes.of(1_000)
    ways: dict[str, Callable[[Path], float]] = {
        "TensorBoardSink, 50 points a write": lambda path: _rate(made, path, 50),
        "TensorBoardSink, 1 point a write": lambda path: _rate(made, path, 1),
        "SummaryWriter.add_scalar": lambda path: 8 * few / write_theirs(path, few),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(sizes.repeats):
        for number, (name, way) in enumerate(ways.items()):
            rates[name].append(way(folder / f"write-{repeat}-{number}"))
    for name in ways:
        report.figure(_SECTION, name, statistics.median(rates[name]), "values/s")
    many, single, theirs = rates.values()
    for name, ours in (("50 points", many), ("1 point", single)):
        times = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        report.at_least(f"writing: {name} a write, times SummaryWriter", times, 10.0, "x")


def points(number: int) -> list[Point]:
    """Return points of eight values."""
    return [
        Point(step=step, wall_time=_WALL + step, values=dict.fromkeys(SERIES, step * 0.5))
        for step in range(1, number + 1)
    ]


def write_ours(folder: Path, made: Sequence[Point], at_once: int) -> float:
    """Write points into a folder with our sink; return the seconds that it took."""
    from trackperf_tensorboard import TensorBoardSink

    sink = TensorBoardSink()
    sink.open(RunInfo(run_id="0" * 32, name=folder.name, dir=str(folder.parent), started_at=_WALL))
    begin = perf_counter()
    for place in range(0, len(made), at_once):
        sink.write(made[place : place + at_once])
    return perf_counter() - begin


def write_theirs(folder: Path, steps: int) -> float:
    """Write eight values a step into a folder with `SummaryWriter`; return the seconds that it took."""
    writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
    begin = perf_counter()
    for step in range(1, steps + 1):
        for name in SERIES:
            writer.add_scalar(name, step * 0.5, step)
    writer.flush()
    took = perf_counter() - begin
    writer.close()
    return took


def _rate(made: Sequence[Point], folder: Path, at_once: int) -> float:
    return 8 * len(made) / write_ours(folder, made, at_once)
