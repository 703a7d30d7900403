"""
One run out of several sessions: what a reader does with a run that was resumed.

A session is what one process wrote. A process that took the run over at step k did every later step
again, so what earlier sessions say about steps after k is replaced, whole series at a time, also where
the new session has not come that far yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from trackperf.history import Series

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from trackperf.record import Alert

__all__ = ["Merged", "Session", "merge_sessions"]

_NONE: Final[Mapping[str, Series]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Session:
    """
    What one process wrote of a run, as it was found.

    The steps of its series need not be sorted or unique: of a step that is there twice, the later
    place in the array stands.
    """

    resume_step: int | None = None
    """Steps already finished when the process took the run over; None when it does not say."""

    series: Mapping[str, Series] = field(default_factory=lambda: _NONE)
    """Series by key."""

    alerts: tuple[Alert, ...] = ()
    """Alerts, in the order found."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Merged:
    """The run that several sessions tell of."""

    series: Mapping[str, Series]
    """Series by key, in order of key, steps rising strictly."""

    alerts: tuple[Alert, ...]
    """Alerts that were not replaced, in order."""

    redone_steps: int
    """Steps that were done, lost and done again after a resume."""

    redone_s: float
    """Training seconds that those steps took the first time."""


def merge_sessions(sessions: Sequence[Session], train_key: str) -> Merged:
    """
    Merge the sessions of one run into series with each step once.

    Args:
        sessions: in the order in which they ran. One with a `resume_step` replaces all earlier points
            and alerts of later steps; one without replaces only the steps that it has itself.

        train_key: key of the training time so far (`<prefix>/train_s`): its values tell how long the
            replaced steps took. They count 0 s when the series is absent.
    """
    parts: dict[str, list[Series]] = {}
    alerts: list[Alert] = []
    redone_steps, redone_s = 0, 0.0
    for session in sessions:
        if session.resume_step is not None:
            after = session.resume_step
            redone_steps += max(0, _last_step(parts) - after)
            redone_s += _seconds_after(parts.get(train_key, ()), after)
            parts = {key: [_up_to(part, after) for part in found] for key, found in parts.items()}
            alerts = [alert for alert in alerts if alert.step <= after]
        for key, series in session.series.items():
            parts.setdefault(key, []).append(series)
        alerts.extend(session.alerts)
    joined = ((key, _join(parts[key])) for key in sorted(parts))
    return Merged(
        series={key: series for key, series in joined if len(series)},
        alerts=tuple(alerts),
        redone_steps=redone_steps,
        redone_s=redone_s,
    )


def _last_step(parts: Mapping[str, Sequence[Series]]) -> int:
    lasts = [int(part.step.max()) for found in parts.values() for part in found if len(part)]
    return max(lasts, default=0)


def _seconds_after(parts: Sequence[Series], step: int) -> float:
    """Return the rise of the training time after `step`, which may lie between two points."""
    if not parts:
        return 0.0
    train = _join(parts)
    if not len(train) or int(train.step[-1]) <= step:
        return 0.0
    steps = np.concatenate(([0], train.step)) if train.step[0] > 0 else train.step
    values = np.concatenate(([0.0], train.value)) if train.step[0] > 0 else train.value
    return max(0.0, float(train.value[-1]) - float(np.interp(step, steps, values)))


def _up_to(series: Series, step: int) -> Series:
    return _take(series, series.step <= step)


def _join(parts: Sequence[Series]) -> Series:
    """Return the parts as one series; of a step that is there more than once the last stands."""
    whole = parts[0]
    if len(parts) > 1:
        whole = Series(
            step=np.concatenate([part.step for part in parts]),
            wall_time=np.concatenate([part.wall_time for part in parts]),
            value=np.concatenate([part.value for part in parts]),
        )
    if not len(whole) or bool((np.diff(whole.step) > 0).all()):
        return whole
    whole = _take(whole, np.argsort(whole.step, kind="stable"))
    return _take(whole, np.append(np.diff(whole.step) > 0, True))


def _take(series: Series, index: NDArray[np.bool_] | NDArray[np.intp]) -> Series:
    return Series(step=series.step[index], wall_time=series.wall_time[index], value=series.value[index])
