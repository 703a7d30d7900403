"""Where a rule stands between windows: the row it is in, and whether it is raised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackperf.rule import Side

if TYPE_CHECKING:
    from trackperf.record import Level
    from trackperf.rule import Rule

__all__ = ["State", "advance", "excess_of"]


@dataclass(slots=True)
class State:
    """Where one rule stands."""

    able: bool = False
    """Whether a window had its inputs; only then has it a flag."""

    abstains: str = ""
    """Why the last window was passed over."""

    raised: bool = False
    row: int = 0
    """Windows so far towards the next change."""

    excess: float = 0.0
    """Sum over the row of how far its windows lie beyond the threshold."""

    steps: int = 0
    loud: int = 0
    """Windows of the row whose evidence makes a notice a warning."""

    level: Level = "notice"
    since_ns: int = 0
    told: bool = False
    """Whether the present alert was handed out."""

    quiet_until_ns: int | None = None
    untold: int = 0
    """Alerts that came and went within the cooldown since the last one handed out."""

    def restart(self) -> None:
        """Begin a new row."""
        self.row, self.excess, self.steps, self.loud = 0, 0.0, 0, 0


def advance(
    rule: Rule, state: State, value: float, side: Side, *, steps: int, now_ns: int, loud: bool
) -> bool:
    """
    Take one window into a rule's state; return whether it cleared by it.

    Args:
        rule: the rule.

        state: where it stands.

        value: the window's value.

        side: what other inputs make of it.

        steps: steps in the window.

        now_ns: monotonic time.

        loud: whether its evidence makes a notice a warning.
    """
    healthy = side is Side.HEALTHY or (side is Side.BY_VALUE and rule.is_clear(value))
    if state.raised:
        state.row = state.row + 1 if healthy else 0
        if not state.told:
            state.level = "warning" if loud else rule.level
        if state.row < rule.clear_windows:
            return False
        state.raised = False
        state.restart()
        return True
    excess = excess_of(rule, value, side)
    # One outlier must not carry a row of windows that are all below the threshold.
    band = abs(rule.threshold - rule.clear) or math.inf
    state.excess += min(excess, band)
    if healthy or state.excess <= 0:
        state.restart()
        return False
    state.row += excess > 0
    state.loud += excess > 0 and loud
    state.steps += steps
    if excess > 0 and state.row >= rule.windows and state.steps >= rule.min_steps:
        state.raised, state.since_ns = True, now_ns
        state.level = "warning" if 2 * state.loud > state.row else rule.level
        state.restart()
    return False


def excess_of(rule: Rule, value: float, side: Side) -> float:
    """Return how far a window lies beyond the threshold; where others than the value say so, just beyond."""
    excess = rule.excess(value)
    return max(excess, abs(rule.threshold - rule.clear) or 1.0) if side is Side.BEYOND else excess
