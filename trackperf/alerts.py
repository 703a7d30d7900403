"""The engine that raises and clears alerts: rules over windows, without noise and without storms."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from trackperf.metrics import CATALOGUE
from trackperf.record import Alert
from trackperf.rules import SHIPPED, Rule, build_rules
from trackperf.text import duration, number

__all__ = ["SHIPPED", "Advise", "AlertEngine", "Rule", "build_rules"]

Advise: TypeAlias = Callable[[Rule, Mapping[str, float]], str]
"""Writes the advice for a rule that is raised, from the values of the window."""

_LOG: Final = logging.getLogger("trackperf")


@dataclass(slots=True)
class _State:
    """Where one rule stands."""

    raised: bool = False
    row: int = 0
    """Windows so far towards the next change."""

    excess: float = 0.0
    """Sum over the row of how far its windows lie beyond the threshold."""

    steps: int = 0
    since_ns: int = 0
    told: bool = False
    """Whether the present alert was handed out."""

    quiet_until_ns: int | None = None
    untold: int = 0
    """Alerts that came and went within the cooldown since the last one handed out."""

    def restart(self) -> None:
        self.row, self.excess, self.steps = 0, 0.0, 0


class _Pool:
    """Puts short windows together: one step between two evaluations is not judged as two seconds are."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._held: list[tuple[Mapping[str, float], int, float]] = []

    def add(self, values: Mapping[str, float], steps: int) -> tuple[Mapping[str, float], int] | None:
        """Return the values and steps to judge now; None while too little has come together."""
        if steps < 1:
            return None
        seconds = values.get("perf/step_ms", math.nan) * steps / 1e3
        if not math.isfinite(seconds):
            return values, steps
        self._held.append((values, steps, seconds))
        if sum(held[2] for held in self._held) < self._least_s:
            return None
        held, self._held = self._held, []
        return (values, steps) if len(held) == 1 else (_merged(held), sum(part[1] for part in held))


def _merged(parts: list[tuple[Mapping[str, float], int, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for values, steps, seconds in parts:
        for key, value in values.items():
            if math.isfinite(value):
                # A time per step is weighted by steps; a share or a rate by time.
                weight = steps if key.endswith("_ms") else max(seconds, 1e-9)
                sums[key] = sums.get(key, 0.0) + value * weight
                weights[key] = weights.get(key, 0.0) + weight
    return {key: total / weights[key] for key, total in sums.items()}


class AlertEngine:
    """
    Judges every window by every rule and says what changed.

    A rule goes from quiet over a row of windows to raised, and back over another row. A value that is
    absent or not finite leaves it where it is. Within the cooldown after it cleared, a rule's flag still
    follows the truth but nobody is told; if it is still raised when the cooldown ends, it is told then, and
    what came and went in between is counted in the text. Belongs to one thread, the reporter's.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        min_window_s: float = 0.5,
    ) -> None:
        """
        Args:
            rules: the rules to judge by, each name once.

            clock: monotonic nanoseconds, for cooldowns.

            min_window_s: windows shorter than this are put together with those that follow.
        """
        self._states = [(rule, _State()) for rule in rules]
        self._clock = clock
        self._pool = _Pool(min_window_s)
        self._complained: set[str] = set()

    def judge(
        self,
        values: Mapping[str, float],
        *,
        step: int,
        steps: int,
        wall_time: float,
        advise: Advise | None = None,
    ) -> list[Alert]:
        """
        Judge a closed steady window and return the alerts that were raised or cleared by it. Never raises.

        Args:
            values: the window's values by catalogue key; what was not measured is not in it.

            step: finished steps at its end.

            steps: steps in it.

            wall_time: seconds since the epoch at its end.

            advise: writes the advice; where it is missing, fails or returns nothing, the rule's own stands.
        """
        ready = self._pool.add(values, steps)
        if ready is None:
            return []
        window, covered = ready
        now_ns = self._clock()
        alerts: list[Alert] = []
        for rule, state in self._states:
            value = window.get(rule.key)
            if value is None or not math.isfinite(value):
                continue
            cleared = _advance(rule, state, value, covered, now_ns)
            if state.raised and not state.told and rule.excess(value) > 0:
                if state.quiet_until_ns is None or now_ns >= state.quiet_until_ns:
                    alerts.append(
                        self._raised(rule, state, window, step=step, wall_time=wall_time, advise=advise)
                    )
            elif cleared and state.told:
                raised_s = (now_ns - state.since_ns) / 1e9
                alerts.append(_cleared(rule, value, step=step, wall_time=wall_time, raised_s=raised_s))
                state.told = False
                state.quiet_until_ns = now_ns + round(rule.cooldown_s * 1e9)
            elif cleared:
                state.untold += 1
        return alerts

    def flags(self) -> dict[str, float]:
        """Return `perf_alert/<rule>` (1 while raised, else 0) and `perf_alert/active`, if there are rules."""
        flags = {f"perf_alert/{rule.name}": float(state.raised) for rule, state in self._states}
        return {**flags, "perf_alert/active": sum(flags.values())} if flags else {}

    def _raised(
        self,
        rule: Rule,
        state: _State,
        window: Mapping[str, float],
        *,
        step: int,
        wall_time: float,
        advise: Advise | None,
    ) -> Alert:
        value = window[rule.key]
        cause = self._written(rule, "cause", lambda: rule.cause(window))
        cause = (
            cause
            or f"{_title(rule)} is {_amount(rule, value)} ({rule.direction} {_amount(rule, rule.threshold)})"
        )
        if state.untold:
            times = "once" if state.untold == 1 else f"{state.untold} times"
            cause += f" (since the last alert it also came and went {times})"
        advice = self._written(rule, "advice", lambda: advise(rule, window)) if advise is not None else ""
        advice = advice or self._written(rule, "advice", lambda: rule.advice(window))
        state.told, state.untold = True, 0
        return Alert(
            rule=rule.name,
            state="raised",
            level=rule.level,
            step=step,
            wall_time=wall_time,
            value=value,
            threshold=rule.threshold,
            cause=cause,
            advice=advice,
        )

    def _written(self, rule: Rule, what: str, write: Callable[[], str]) -> str:
        try:
            return write()
        except Exception:  # noqa: BLE001 - whatever a text costs, the alert itself must come
            if rule.name not in self._complained:
                self._complained.add(rule.name)
                _LOG.warning("the %s of alert %s could not be written", what, rule.name, exc_info=True)
            return ""


def _advance(rule: Rule, state: _State, value: float, steps: int, now_ns: int) -> bool:
    """Take one window into a rule's state; return whether it cleared by it."""
    if state.raised:
        state.row = state.row + 1 if rule.is_clear(value) else 0
        if state.row < rule.clear_windows:
            return False
        state.raised = False
        state.restart()
        return True
    excess = rule.excess(value)
    # One outlier must not carry a row of windows that are all below the threshold.
    band = abs(rule.threshold - rule.clear) or math.inf
    state.excess += min(excess, band)
    if rule.is_clear(value) or state.excess <= 0:
        state.restart()
        return False
    state.row += excess > 0
    state.steps += steps
    if excess > 0 and state.row >= rule.windows and state.steps >= rule.min_steps:
        state.raised, state.since_ns = True, now_ns
        state.restart()
    return False


def _cleared(rule: Rule, value: float, *, step: int, wall_time: float, raised_s: float) -> Alert:
    side = "below" if rule.direction == "above" else "above"
    return Alert(
        rule=rule.name,
        state="cleared",
        level=rule.level,
        step=step,
        wall_time=wall_time,
        value=value,
        threshold=rule.clear,
        cause=f"{_title(rule)} is {_amount(rule, value)}, {side} {_amount(rule, rule.clear)} again "
        f"after {duration(raised_s)}",
    )


def _title(rule: Rule) -> str:
    metric = CATALOGUE.get(rule.key)
    return metric.title if metric else rule.key


def _amount(rule: Rule, value: float) -> str:
    metric = CATALOGUE.get(rule.key)
    return number(value) if metric is None or metric.unit == "1" else f"{number(value)} {metric.unit}"
