"""The engine that raises and clears alerts: rules over windows, without noise and without storms."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from trackperf.metrics import CATALOGUE
from trackperf.pool import Pool
from trackperf.record import Alert
from trackperf.rule import Rule, Side, Values
from trackperf.rules import SHIPPED, build_rules
from trackperf.standing import State, advance, excess_of
from trackperf.steady import Steady
from trackperf.text import duration, number

__all__ = ["SHIPPED", "Advise", "AlertEngine", "Rule", "build_rules"]

Advise: TypeAlias = Callable[[Rule, Values, Steady], str]
"""Writes the advice for a rule that is raised, from the window's values and what is usual in the run."""

_LOG: Final = logging.getLogger("trackperf")
_NOT_USED: Final = "the training does not use the GPU that is read"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A window as the rules see it."""

    values: Values
    steps: int
    step: int
    wall_time: float
    now_ns: int
    used: bool
    """Whether the training uses the device that was read."""
    advise: Advise | None


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
        uses_device: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            rules: the rules to judge by, each name once.

            clock: monotonic nanoseconds, for cooldowns.

            min_window_s: windows shorter than this are put together with those that follow.

            uses_device: whether the training uses the device whose readings are among the values.
        """
        self._states = [(rule, State()) for rule in rules]
        self._clock = clock
        self._pool = Pool(min_window_s)
        self._uses_device = uses_device
        self._steady = Steady()
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
        used = self._uses_device()
        self._see(values, used=used)
        ready = self._pool.add(values, steps)
        if ready is None:
            return []
        window = _Judged(
            values=_finite(ready[0]),
            steps=ready[1],
            step=step,
            wall_time=wall_time,
            now_ns=self._clock(),
            used=used,
            advise=advise,
        )
        alerts = (self._by_rule(rule, state, window) for rule, state in self._states)
        found = [alert for alert in alerts if alert is not None]
        self._steady.add(window.values)
        return found

    def flags(self) -> dict[str, float]:
        """Return `perf_alert/<rule>` of rules with inputs, 1 while raised, and `perf_alert/active`."""
        flags = {f"perf_alert/{rule.name}": float(state.raised) for rule, state in self._states if state.able}
        return {**flags, "perf_alert/active": sum(flags.values())} if flags else {}

    @property
    def abstained(self) -> dict[str, str]:
        """Rules without a flag so far, each with the reason."""
        return {rule.name: state.abstains for rule, state in self._states if not state.able}

    def _see(self, values: Values, *, used: bool) -> None:
        """Note which rules have their inputs here."""
        for rule, state in self._states:
            if state.able:
                continue
            inputs = rule.inputs or (rule.key,)
            if rule.of_device and not used:
                state.abstains = _NOT_USED
            elif any(key in values for key in inputs):
                state.able = True
            else:
                state.abstains = f"{inputs[0]} is not measured"

    def _by_rule(self, rule: Rule, state: State, window: _Judged) -> Alert | None:
        reading = self._reading(rule, state, window)
        if isinstance(reading, str):
            state.abstains = reading
            return None
        value, side = reading
        cleared = advance(
            rule,
            state,
            value,
            side,
            steps=window.steps,
            now_ns=window.now_ns,
            loud=rule.louder(window.values),
        )
        if state.raised and not state.told and excess_of(rule, value, side) > 0:
            if state.quiet_until_ns is None or window.now_ns >= state.quiet_until_ns:
                return self._raised(rule, state, window, value)
        elif cleared and state.told:
            state.told = False
            state.quiet_until_ns = window.now_ns + round(rule.cooldown_s * 1e9)
            return _cleared(rule, state, window, value)
        elif cleared:
            state.untold += 1
        return None

    def _reading(self, rule: Rule, state: State, window: _Judged) -> tuple[float, Side] | str:
        """Return the value and what other inputs make of it, or why the window is passed over."""
        if rule.of_device and not window.used:
            return _NOT_USED
        try:
            value = rule.value(window.values, self._steady)
            side = value if isinstance(value, str) else rule.side(window.values, self._steady, state.raised)
        except Exception:  # noqa: BLE001 - a rule of the user's own may do anything
            self._complain(rule, "condition")
            return "its condition could not be judged"
        if isinstance(value, str) or isinstance(side, str):
            return str(side)
        return (value, side) if math.isfinite(value) else f"{rule.key} is not finite"

    def _raised(self, rule: Rule, state: State, window: _Judged, value: float) -> Alert:
        cause = self._written(rule, "cause", lambda: rule.cause(window.values, self._steady))
        limit = f"{rule.direction} {_amount(rule, rule.threshold)}"
        cause = cause or f"{_title(rule)} is {_amount(rule, value)} ({limit})"
        if state.untold:
            times = "once" if state.untold == 1 else f"{state.untold} times"
            cause += f" (since the last alert it also came and went {times})"
        advise, advice = window.advise, ""
        if advise is not None:
            advice = self._written(rule, "advice", lambda: advise(rule, window.values, self._steady))
        advice = advice or self._written(rule, "advice", lambda: rule.advice(window.values, self._steady))
        state.told, state.untold = True, 0
        return Alert(
            rule=rule.name,
            state="raised",
            level=state.level,
            step=window.step,
            wall_time=window.wall_time,
            value=value,
            threshold=rule.threshold,
            cause=cause,
            advice=advice,
        )

    def _written(self, rule: Rule, what: str, write: Callable[[], str]) -> str:
        try:
            return write()
        except Exception:  # noqa: BLE001 - whatever a text costs, the alert itself must come
            self._complain(rule, what)
            return ""

    def _complain(self, rule: Rule, what: str) -> None:
        words = "judged" if what == "condition" else "written"
        if rule.name not in self._complained:
            self._complained.add(rule.name)
            _LOG.warning("the %s of alert %s could not be %s", what, rule.name, words, exc_info=True)


def _finite(values: Values) -> Values:
    if all(map(math.isfinite, values.values())):
        return values
    return {key: value for key, value in values.items() if math.isfinite(value)}


def _cleared(rule: Rule, state: State, window: _Judged, value: float) -> Alert:
    after = f"after {duration((window.now_ns - state.since_ns) / 1e9)}"
    side = "below" if rule.direction == "above" else "above"
    cause = f"{_title(rule)} is {_amount(rule, value)}, "
    if rule.key.startswith("perf_alert/"):
        cause = f"{_title(rule)} is over {after}"
    elif rule.is_clear(value):
        cause += f"{side} {_amount(rule, rule.clear)} again {after}"
    else:
        cause += f"and what made it an alert is over {after}"
    return Alert(
        rule=rule.name,
        state="cleared",
        level=state.level,
        step=window.step,
        wall_time=window.wall_time,
        value=value,
        threshold=rule.clear,
        cause=cause,
    )


def _title(rule: Rule) -> str:
    metric = CATALOGUE.get(rule.key)
    return rule.title or (metric.title if metric else rule.key)


def _amount(rule: Rule, value: float) -> str:
    metric = CATALOGUE.get(rule.key)
    unit = rule.unit or (metric.unit if metric else "1")
    return number(value) if unit == "1" else f"{number(value)} {unit}"
