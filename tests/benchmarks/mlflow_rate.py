"""Values into MLflow's database, each second: what delivery and the sink leave of MLflow's own rate."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import statistics
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from trackperf.delivery import Delivery
from trackperf.errors import TrackperfError
from trackperf.record import Point, RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.report import Report
    from benchmarks.rows import Sizes

__all__ = ["drain_into_mlflow"]

_SECTION: Final = "Into MLflow's SQLite, points of 20 values"
_VALUES: Final = 20
_AT_ONCE: Final = 1000
_WALL: Final = 1.7e9
_PATIENCE_S: Final = 300.0
_REPEATS: Final = 5
"""Each takes seconds, and the ratio within one is what counts."""


def drain_into_mlflow(report: Report, folder: Path, sizes: Sizes) -> None:
    """Measure a run of ours beside a bare loop of `MlflowClient.log_batch`, each into its own database."""
    try:
        import_module("mlflow")
    except ImportError as error:
        report.skipped.append(f"mlflow is not installed ({error})")
        return
    template = _template(folder)
    made = _points(sizes.of(300))
    ways: dict[str, Callable[[Path, Sequence[Point]], float]] = {
        "MlflowSink, behind its spool": _ours,
        "MlflowClient.log_batch": _theirs,
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(min(sizes.repeats, _REPEATS) + 1):
        for number, (name, way) in enumerate(ways.items()):
            place = folder / f"mlflow-{repeat}-{number}"
            place.mkdir()
            shutil.copy(template, place / "mlflow.db")
            rate = len(made) * _VALUES / way(place, made)
            _count(place, name, len(made) * _VALUES)
            # In the first one everything is imported.
            rates[name] += [rate] if repeat else []
    for name in ways:
        report.figure(_SECTION, name, statistics.median(rates[name]), "values/s")
    share = statistics.median(a / b for a, b in zip(*rates.values(), strict=True))
    report.at_least("MLflow: share of log_batch's own rate", share, 0.8, "x")


def _template(folder: Path) -> Path:
    from trackperf_mlflow.api import Deadlines
    from trackperf_mlflow.tables import make_tables

    make_tables(f"sqlite:///{folder / 'mlflow.db'}", Deadlines())
    return folder / "mlflow.db"


def _points(number: int) -> list[Point]:
    keys = [f"perf_x/series_{at}" for at in range(_VALUES)]
    return [
        Point(step=step, wall_time=_WALL + step, values=dict.fromkeys(keys, step + 0.5))
        for step in range(1, number + 1)
    ]


def _ours(place: Path, made: Sequence[Point]) -> float:
    """Return the seconds from the first point until all are in the database."""
    from trackperf_mlflow import MlflowSink

    delivery = Delivery([MlflowSink(tracking_uri=f"sqlite:///{place / 'mlflow.db'}")])
    delivery.start()
    delivery.open(RunInfo(run_id="0" * 32, name="run", dir=str(place), started_at=_WALL))
    delivery.flush(_PATIENCE_S)
    begin = perf_counter()
    for point in made:
        delivery.write(point)
    arrived = delivery.flush(_PATIENCE_S)
    took = perf_counter() - begin
    delivery.close(RunSummary(steps=len(made), samples=None), Status.FINISHED, _PATIENCE_S)
    if not arrived or delivery.dropped_points:
        raise TrackperfError(f"{delivery.dropped_points} of {len(made)} points were dropped")
    return took


def _theirs(place: Path, made: Sequence[Point]) -> float:
    """Return the seconds that a loop takes which does nothing but store the same values."""
    client: Any = import_module("mlflow").MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    metric: Any = import_module("mlflow.entities").Metric
    run_id = client.create_run("0").info.run_id
    at_once = _AT_ONCE // _VALUES
    begin = perf_counter()
    for first in range(0, len(made), at_once):
        values = [
            metric(key, value, round(point.wall_time * 1000), point.step)
            for point in made[first : first + at_once]
            for key, value in point.values.items()
        ]
        client.log_batch(run_id, metrics=values)
    return perf_counter() - begin


def _count(place: Path, name: str, expected: int) -> None:
    """Make sure that all of it is there."""
    query = "SELECT count(*) FROM metrics WHERE key LIKE 'perf\\_x/%' ESCAPE '\\'"
    with contextlib.closing(sqlite3.connect(place / "mlflow.db")) as database:
        (found,) = database.execute(query).fetchone()
    if found != expected:
        raise TrackperfError(f"{name}: MLflow has {found} of {expected} values")
