"""Many runs at a glance: one row a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackperf.errors import ReadError
from trackperf.figures import figures

if TYPE_CHECKING:
    from trackperf.history import RunHistory
    from trackperf.record import Alert

__all__ = ["RunRow", "row", "runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in one row. None for what was not measured or is not stored."""

    name: str
    source: str
    """Address that the run is read from."""

    status: str
    """`finished`, `failed`, `killed`, `unfinished` or `unreadable`, and `damaged` with it where it is."""

    started_at: float | None = None
    """Seconds since the epoch when it began."""

    steps: int | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    step_ms: float | None = None
    train_s: float | None = None
    redone_s: float = 0.0
    """Training seconds done, lost and done again after a resume; not part of `train_s`."""

    to_goal_s: float | None = None
    data_pct: float | None = None
    gpu_util_pct: float | None = None
    mem_bw_pct: float | None = None
    mem_busy_pct: float | None = None
    alerts: int | None = None
    """How often an alert was raised; None where nothing could be read."""

    problems: tuple[str, ...] = ()
    """What is wrong with the stored data, a sentence each."""


def row(history: RunHistory) -> RunRow:
    """Return the row of a run that was read."""
    found = figures(history)
    medians = found.medians
    return RunRow(
        name=history.name,
        source=history.source,
        status=_status(history),
        started_at=_started_at(history),
        steps=found.steps,
        samples_per_s=medians.get("perf/samples_per_s"),
        tokens_per_s=medians.get("perf/tokens_per_s"),
        step_ms=medians.get("perf/step_ms"),
        train_s=found.train_s,
        redone_s=history.redone_s,
        to_goal_s=found.to_goal_s,
        data_pct=medians.get("perf/data_pct"),
        gpu_util_pct=medians.get("perf/gpu_util_pct"),
        mem_bw_pct=medians.get("perf/mem_bw_pct"),
        mem_busy_pct=medians.get("perf/mem_busy_pct"),
        alerts=sum(alert.state == "raised" for alert in _alerts(history)),
        problems=history.problems,
    )


def runs(address: str) -> list[RunRow]:
    """
    Return a row for every run at or below an address, in order of their beginning.

    A run that cannot be read has a row that says so.

    Raises:
        ReadError: nothing is there.
    """
    from trackperf.registry import find_runs  # noqa: PLC0415 - looks for plug-ins

    rows = [_row_at(found) for found in find_runs(address)]
    return sorted(rows, key=lambda one: (one.started_at is None, one.started_at or 0.0, one.name))


def _row_at(address: str) -> RunRow:
    from trackperf.registry import read_run  # noqa: PLC0415 - as above

    try:
        return row(read_run(address))
    except ReadError as error:
        return RunRow(name=address, source=address, status="unreadable", problems=(str(error),))


def _status(history: RunHistory) -> str:
    ending = history.status.value if history.status else "unfinished"
    return f"{ending}, damaged" if history.problems else ending


def _alerts(history: RunHistory) -> tuple[Alert, ...]:
    return history.alerts or (history.summary.alerts if history.summary else ())


def _started_at(history: RunHistory) -> float | None:
    # A resumed run's info tells when its last part began; its first point is older.
    first = [float(one.wall_time[0]) for one in history.series.values() if len(one)]
    if history.info is not None:
        first.append(history.info.started_at)
    return min(first, default=None)
