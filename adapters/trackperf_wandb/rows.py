"""What a run looks like in W&B: the names that trackperf writes under, and records to rows and back."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from trackperf.codec import from_json, plain, to_json
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "ALERTS",
    "CONFIG",
    "RESUME",
    "STATUS",
    "STEP",
    "SUMMARY",
    "TIME",
    "alert_text",
    "alerts_json",
    "config_of",
    "own_key",
    "parse_alerts",
    "row_of",
    "section_of",
    "summary_values",
    "tags_of",
]

STEP: Final = "trackperf/step"
"""Finished steps: the x axis of every series of ours."""

TIME: Final = "trackperf/time"
"""Wall-clock seconds of a point; a row's own time belongs to the user where the run is his."""

RESUME: Final = "trackperf/resume_step"
"""In the first row of a process that took the run over: the steps that were finished then."""

CONFIG: Final = "trackperf"
"""Key of the configuration that holds what the run is."""

SUMMARY: Final = "trackperf/summary"
"""Key of the summary that holds `RunSummary`, as JSON."""

STATUS: Final = "trackperf/status"
"""Key of the summary that holds how the run ended."""

ALERTS: Final = "trackperf/alerts"
"""Key of the summary that holds the alerts, as JSON."""

_TAG: Final = 64
"""Longest tag that W&B takes."""


def section_of(key: str) -> str:
    """Return what to define a step metric for: the key's section with a star, or the key itself."""
    section, slash, _ = key.partition("/")
    return f"{section}/*" if slash else key


def own_key(key: str, prefix: str) -> str:
    """
    Return the key for a run that is the user's.

    What `observe` gave is moved to a section of ours: the user may log the same name himself, and in one row
    the later value would take the earlier one's place.
    """
    return key if key.startswith((f"{prefix}/", f"{prefix}_")) else f"{prefix}_observed/{key}"


def row_of(point: Point, *, joined: str | None) -> tuple[dict[str, Any], int]:
    """
    Return a point as a row of W&B, and how many of its values no tracker can show.

    Args:
        point: the point.

        joined: prefix of our keys in a run that is the user's; None in one of our own.
    """
    row: dict[str, Any] = {}
    dropped = 0
    for key, value in point.values.items():
        if math.isfinite(value):
            row[key if joined is None else own_key(key, joined)] = float(value)
        else:
            dropped += 1
    row[STEP] = int(point.step)
    row[TIME] = float(point.wall_time)
    if joined is None:
        row["_timestamp"] = float(point.wall_time)
    return row, dropped


def config_of(run: RunInfo, *, joined: bool) -> dict[str, Any]:
    """Return what goes into the run's configuration under `CONFIG`: for people, and whole for the reader."""
    return {
        "info": to_json(run),
        "joined": joined,
        "environment": plain(run.environment),
        "loader": plain(run.loader),
        "not_measured": plain(run.absent),
        "world_size": run.world_size,
    }


def tags_of(tags: Mapping[str, str]) -> list[str]:
    """Return the user's tags as W&B knows them: texts, not pairs."""
    return [f"{key}:{value}"[:_TAG] for key, value in tags.items()]


def summary_values(summary: RunSummary, status: Status | None, prefix: str) -> dict[str, Any]:
    """Return what goes into the run's summary: columns of the table of runs, and the whole for the reader."""
    before, after = f"{prefix}/", f"{prefix}_summary/"
    values: dict[str, Any] = {
        after + key.removeprefix(before): stat.p50
        for key, stat in summary.metrics.items()
        if key.startswith(before)
    }
    if summary.phases:
        values[f"{after}train_s"] = summary.train_s
    if summary.to_goal_s is not None:
        values[f"{after}to_goal_s"] = summary.to_goal_s
    if summary.to_goal_steps is not None:
        values[f"{after}to_goal_steps"] = summary.to_goal_steps
    values[SUMMARY] = to_json(summary)
    if status is not None:
        values[STATUS] = status.value
    return values


def alert_text(alert: Alert) -> str:
    """Return what W&B sends to people."""
    return f"Step {alert.step}: {alert.cause} {alert.advice}".strip()


def alerts_json(alerts: Iterable[Alert]) -> str:
    """Return alerts as JSON, whole."""
    return f"[{','.join(map(to_json, alerts))}]"


def parse_alerts(text: Any) -> Sequence[Alert]:
    """
    Return the alerts that `alerts_json` wrote; none for what is no text.

    Raises:
        ValueError: it is no JSON of alerts.
    """
    if not isinstance(text, str):
        return ()
    return tuple(from_json(Alert, json.dumps(found)) for found in json.loads(text))
