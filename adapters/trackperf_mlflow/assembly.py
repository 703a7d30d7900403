"""One history out of what MLflow stored of a run, over all its resumes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from trackperf.codec import from_json
from trackperf.history import RunHistory, Series
from trackperf.metrics import full_key
from trackperf.record import Alert, RunInfo, RunSummary, Status
from trackperf.sessions import Session, merge_sessions
from trackperf_mlflow import records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackperf_mlflow.api import History, StoredRun

__all__ = ["assemble"]


def assemble(stored: StoredRun, columns: Mapping[str, History], source: str) -> RunHistory:
    """
    Return a run's history.

    Args:
        stored: the run.

        columns: its series by key, each in order of time.

        source: address that it was read from.
    """
    problems: list[str] = []
    kept = _Kept(stored, problems)
    prefix = kept.info.prefix if kept.info else "perf"
    marker = columns.get(f"{prefix}_self/session")
    ours = {key: value for key, value in columns.items() if kept.info and kept.wrote(key, prefix)}
    ours.pop(f"{prefix}_self/session", None)
    foreign = {
        key: _series(value) for key, value in columns.items() if key not in ours and value is not marker
    }
    merged = merge_sessions(_sessions(ours, marker, kept.resumes), full_key("perf/train_s", prefix))
    return RunHistory(
        name=kept.info.name if kept.info else stored.name,
        source=source,
        series={**merge_sessions([Session(series=foreign)], "").series, **merged.series},
        alerts=kept.alerts,
        info=kept.info,
        summary=kept.summary,
        status=kept.status or _status(stored, kept),
        problems=tuple(problems),
        redone_steps=merged.redone_steps,
        redone_s=merged.redone_s,
    )


class _Kept:
    """What trackperf keeps of a run in its tags."""

    def __init__(self, stored: StoredRun, problems: list[str]) -> None:
        self.info: RunInfo | None = None
        self.summary: RunSummary | None = None
        self.status: Status | None = None
        self.alerts: tuple[Alert, ...] = ()
        self.resumes: list[tuple[int, float]] = []
        self._keys: frozenset[str] = frozenset()
        for name, take in (
            (records.INFO, self._take_info),
            (records.END, self._take_end),
            (records.ALERTS, self._take_alerts),
            (records.SESSIONS, self._take_sessions),
            (records.KEYS, self._take_keys),
        ):
            try:
                text = records.unpack(name, stored.tags)
                if text is not None:
                    take(text)
            except (ValueError, TypeError, KeyError) as error:  # noqa: PERF203 - the others count
                problems.append(f"what trackperf kept in the tag {name!r} is not understood: {error}")

    def wrote(self, key: str, prefix: str) -> bool:
        """Return whether a series is trackperf's."""
        return key.startswith((f"{prefix}/", f"{prefix}_")) or key in self._keys

    def _take_info(self, text: str) -> None:
        self.info = from_json(RunInfo, text)

    def _take_end(self, text: str) -> None:
        told = json.loads(text)
        self.status = Status(told["status"])
        self.summary = from_json(RunSummary, json.dumps(told["summary"]))

    def _take_alerts(self, text: str) -> None:
        self.alerts = tuple(from_json(Alert, one) for one in json.loads(text))

    def _take_sessions(self, text: str) -> None:
        self.resumes = [(int(step), float(at)) for step, at in json.loads(text)]

    def _take_keys(self, text: str) -> None:
        self._keys = frozenset(json.loads(text))


def _status(stored: StoredRun, kept: _Kept) -> Status | None:
    """Return how a run ended of which trackperf did not tell an end; a run of the user's may go on."""
    if kept.info is not None and stored.status == "FINISHED":
        return None
    return {"FINISHED": Status.FINISHED, "FAILED": Status.FAILED, "KILLED": Status.KILLED}.get(stored.status)


def _sessions(
    columns: Mapping[str, History], marker: History | None, resumes: Sequence[tuple[int, float]]
) -> list[Session]:
    """Split series by the process that wrote each point, in the order in which they ran."""
    number: dict[tuple[int, int], int] = {}
    if marker is not None and resumes:
        rows = zip(marker.step.tolist(), marker.timestamp_ms.tolist(), marker.value.tolist(), strict=True)
        number = {(step, stamp): int(value) for step, stamp, value in rows}
    order = sorted(range(len(resumes)), key=lambda at: (resumes[at][1], at))
    sessions: list[dict[str, Series]] = [{} for _ in range(len(resumes) + 1)]
    for key, column in columns.items():
        whose = _numbers(column, number)
        for at in range(len(sessions)):
            here = whose == at
            if here.any():
                sessions[at][key] = _series(column, here)
    base = Session(series=sessions[0])
    return [base, *(Session(resume_step=resumes[at][0], series=sessions[at + 1]) for at in order)]


def _numbers(column: History, number: Mapping[tuple[int, int], int]) -> Any:
    if not number:
        return np.zeros(column.step.size, np.int64)
    places = zip(column.step.tolist(), column.timestamp_ms.tolist(), strict=True)
    return np.array([number.get(place, 0) for place in places], np.int64)


def _series(column: History, here: Any = slice(None)) -> Series:
    return Series(
        step=column.step[here], wall_time=column.timestamp_ms[here] / 1000.0, value=column.value[here]
    )
