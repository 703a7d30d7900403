"""Lines of JSON back to a run: every line that is sound, and a sentence about those that are not."""

from __future__ import annotations

import json
import math
from array import array
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trackperf.codec import from_json
from trackperf.errors import ReadError
from trackperf.history import RunHistory, Series
from trackperf.metrics import full_key
from trackperf.record import Alert, RunInfo, RunSummary, Status
from trackperf.sessions import Session, merge_sessions

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_file"]


@dataclass(slots=True)
class _Column:
    step: array[int] = field(default_factory=lambda: array("q"))
    wall_time: array[float] = field(default_factory=lambda: array("d"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def series(self) -> Series:
        return Series(
            step=np.array(self.step, dtype=np.int64),
            wall_time=np.array(self.wall_time, dtype=np.float64),
            value=np.array(self.value, dtype=np.float64),
        )


@dataclass(slots=True)
class _Part:
    """What one process wrote."""

    info: RunInfo | None = None
    columns: dict[str, _Column] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)
    summary: RunSummary | None = None
    status: Status | None = None

    def session(self) -> Session:
        return Session(
            resume_step=self.info.resume_step if self.info else None,
            series={key: column.series() for key, column in self.columns.items()},
            alerts=tuple(self.alerts),
        )


class _Parser:
    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.sound = 0
        self.last = 0
        self.damaged: list[int] = []
        self.unknown: set[str] = set()

    def line(self, number: int, text: bytes) -> None:
        self.last = number
        try:
            self._record(text)
        except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
            self.damaged.append(number)
        else:
            self.sound += 1

    def _record(self, text: bytes) -> None:
        record = json.loads(text)
        kind = record["type"]
        if kind == "run":
            info = from_json(RunInfo, text)
            self.parts.append(_Part(info=replace(info, resume_step=_step_or_none(info.resume_step))))
            return
        if not self.parts:
            self.parts.append(_Part())
        part = self.parts[-1]
        if kind == "point":
            _add_point(part, record)
        elif kind == "alert":
            alert = from_json(Alert, text)
            part.alerts.append(replace(alert, step=int(alert.step)))
        elif kind == "end":
            status = Status(record["status"])
            part.summary, part.status = from_json(RunSummary, text), status
        else:
            self.unknown.add(str(kind))


def read_file(path: Path, *, source: str) -> RunHistory:
    """
    Read one file.

    Args:
        path: the file.

        source: address to name in the result and in messages.

    Raises:
        ReadError: it cannot be opened, or no line of it is of a run.
    """
    parser = _Parser()
    cut = False
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                cut = not text.endswith(b"\n")
                if text.strip():
                    parser.line(number, text)
    except OSError as error:
        raise ReadError(f"cannot read the run at {source!r}: {error}") from error
    if not parser.sound:
        raise ReadError(
            f"{str(path)!r} holds no line of a run; it should be a file that the sink 'jsonl' wrote"
        )
    return _history(parser, path, source=source, cut=cut)


def _history(parser: _Parser, path: Path, *, source: str, cut: bool) -> RunHistory:
    infos = [part.info for part in parser.parts if part.info]
    info = infos[-1] if infos else None
    merged = merge_sessions(
        [part.session() for part in parser.parts],
        full_key("perf/train_s", info.prefix if info else "perf"),
    )
    return RunHistory(
        name=info.name if info else path.parent.name,
        source=source,
        series=merged.series,
        alerts=merged.alerts,
        info=info,
        summary=parser.parts[-1].summary,
        status=parser.parts[-1].status,
        problems=tuple(_problems(parser, cut=cut)),
        redone_steps=merged.redone_steps,
        redone_s=merged.redone_s,
    )


def _problems(parser: _Parser, *, cut: bool) -> list[str]:
    problems = []
    damaged = parser.damaged
    if cut and damaged[-1:] == [parser.last]:
        problems.append(f"the file is cut: its last line ({damaged.pop()}) is incomplete")
    if damaged:
        shown = ", ".join(map(str, damaged[:5])) + (
            f", ... ({len(damaged)} in all)" if len(damaged) > 5 else ""
        )
        problems.append(f"damaged lines were left out: {shown}")
    if not any(part.info for part in parser.parts):
        problems.append("the line that describes the run is missing")
    if parser.unknown:
        kinds = ", ".join(sorted(parser.unknown))
        problems.append(f"lines of a kind that this version does not know were left out: {kinds}")
    return problems


def _step_or_none(step: int | str | None) -> int | None:
    return None if step is None else int(step)


def _add_point(part: _Part, record: dict[str, Any]) -> None:
    step, wall_time = int(record["step"]), float(record["wall_time"])
    # Whole before any of it is kept: a damaged line adds nothing.
    values = {key: float(value) for key, value in record["values"].items() if value is not None}
    if not -(2**63) <= step < 2**63:
        raise OverflowError(step)
    for key, value in values.items():
        if math.isfinite(value):
            column = part.columns.setdefault(key, _Column())
            column.step.append(step)
            column.wall_time.append(wall_time)
            column.value.append(value)
