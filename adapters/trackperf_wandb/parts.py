"""What was read of a W&B run, row by row, until it is a `RunHistory`."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trackperf.codec import from_json
from trackperf.history import RunHistory, Series
from trackperf.metrics import full_key
from trackperf.record import RunInfo, RunSummary, Status
from trackperf.sessions import Session, merge_sessions
from trackperf_wandb.rows import ALERTS, CONFIG, RESUME, STATUS, STEP, SUMMARY, TIME, parse_alerts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackperf.record import Alert

__all__ = ["Part", "history_of"]

_NOT_SERIES: Final = frozenset({STEP, TIME, RESUME, "_step", "_runtime", "_timestamp", "_wandb"})


@dataclass(slots=True)
class _Column:
    step: array[int] = field(default_factory=lambda: array("q"))
    wall_time: array[float] = field(default_factory=lambda: array("d"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: int, wall_time: float, value: float) -> None:
        self.step.append(step)
        self.wall_time.append(wall_time)
        self.value.append(value)

    def series(self) -> Series:
        return Series(
            step=np.array(self.step, dtype=np.int64),
            wall_time=np.array(self.wall_time, dtype=np.float64),
            value=np.array(self.value, dtype=np.float64),
        )


class Part:
    """One file of a run, or the whole of it as its server tells it."""

    def __init__(self) -> None:
        self.name = ""
        """Name of the run in W&B."""
        self.info: RunInfo | None = None
        self.joined = False
        self.status: Status | None = None
        self.exit_code: int | None = None
        """What the run was finished with; None when it was not."""
        self.summary: RunSummary | None = None
        self.alerts: Sequence[Alert] = ()
        self.damaged: list[str] = []
        self.records = 0
        """Records taken so far."""
        self.bad = 0
        """Records that could not be taken."""
        self.others: dict[str, _Column] = {}
        self._sessions: list[tuple[int | None, dict[str, _Column]]] = []

    def configure(self, config: Mapping[str, Any]) -> None:
        """Take the run's configuration, or a change of it."""
        told = config.get(CONFIG)
        if not isinstance(told, dict) or "info" not in told:
            return
        self.joined = bool(told.get("joined"))
        try:
            self.info = from_json(RunInfo, str(told["info"]))
        except ValueError as error:
            self.damaged.append(f"the description of the run ({error})")

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Take the run's summary, or a change of it."""
        try:
            if SUMMARY in values:
                self.summary = from_json(RunSummary, str(values[SUMMARY]))
            if STATUS in values:
                self.status = Status(values[STATUS])
            if ALERTS in values:
                self.alerts = parse_alerts(values[ALERTS])
        except (ValueError, TypeError, AttributeError) as error:
            self.damaged.append(f"the summary ({error})")

    def row(self, row: Mapping[str, Any]) -> None:
        """Take a row of the history."""
        if RESUME in row:
            self._sessions.append((int(row[RESUME]), {}))
        elif not self._sessions:
            self._sessions.append((None, {}))
        columns = self._sessions[-1][1]
        ours = STEP in row
        step = int(row[STEP]) if ours else 0
        wall_time = _number(row.get(TIME), _number(row.get("_timestamp"), math.nan))
        for key, value in row.items():
            if key in _NOT_SERIES or not isinstance(value, (int, float)) or not math.isfinite(value):
                continue
            known = self._key(key) if ours else None
            if known is not None:
                columns.setdefault(known, _Column()).add(step, wall_time, float(value))
            else:
                at = _number(row.get("_timestamp"), math.nan)
                self.others.setdefault(key, _Column()).add(int(row.get("_step", 0)), at, float(value))

    def sessions(self) -> list[Session]:
        """Return what each process wrote."""
        found = self._sessions or [(None, {})]
        if found[0][0] is None and len(found) == 1 and not found[0][1] and self.info:
            found = [(self.info.resume_step, {})]
        return [
            Session(
                resume_step=resume_step,
                series={key: column.series() for key, column in columns.items()},
                alerts=tuple(self.alerts) if number == len(found) else (),
            )
            for number, (resume_step, columns) in enumerate(found, start=1)
        ]

    def ended(self) -> Status | None:
        """Return how the run ended; None when it did not, as far as is known."""
        if self.exit_code is None and not self.joined:
            return None
        if self.status is None and self.exit_code is not None:
            return Status.FINISHED if self.exit_code == 0 else Status.FAILED
        return self.status

    def _key(self, key: str) -> str | None:
        """Return the key as trackperf wrote it; None for a key of the user's in a row that we share."""
        if not self.joined:
            return key
        prefix = self.info.prefix if self.info else "perf"
        observed = f"{prefix}_observed/"
        if key.startswith(observed):
            return key.removeprefix(observed)
        return key if key.startswith((f"{prefix}/", f"{prefix}_")) else None


def history_of(parts: Sequence[Part], source: str, problems: Sequence[str]) -> RunHistory:
    """Return parts of one run, in the order in which they were written, as one."""
    info = next((part.info for part in reversed(parts) if part.info), None)
    sessions = [session for part in parts for session in part.sessions()]
    merged = merge_sessions(sessions, full_key("perf/train_s", info.prefix if info else "perf"))
    users = [Session(series={key: column.series() for key, column in part.others.items()}) for part in parts]
    others = merge_sessions(users, "").series
    told = [*problems]
    told += [f"{what} could not be read" for part in parts for what in part.damaged]
    last = parts[-1]
    return RunHistory(
        name=info.name if info else last.name or source,
        source=source,
        series={**others, **merged.series},
        alerts=merged.alerts,
        info=info,
        summary=last.summary,
        status=last.ended(),
        problems=tuple(told),
        redone_steps=merged.redone_steps,
        redone_s=merged.redone_s,
    )


def _number(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, (int, float)) else otherwise
