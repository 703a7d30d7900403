"""Values that the user observes: placed at their steps, checked against the goal."""

from __future__ import annotations

import collections
import logging
import math
from typing import TYPE_CHECKING, Any, Final

from trackperf.names import safe_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackperf.goal import Goal
    from trackperf.timing.timeline import Timeline

__all__ = ["Observations"]

_log: Final = logging.getLogger("trackperf")
_HOLD: Final = 100_000
SECTION: Final = "perf_observed/"
"""Section that observed values are written in."""


class Observations:
    """What `observe` was told, until the reporter knows the step that each value belongs to."""

    def __init__(self, goal: Goal | None) -> None:
        self.names: dict[str, str] = {}
        """Key as written to the name as given, where the two differ."""
        self.reached: tuple[int, float] | None = None
        """Steps and training seconds when the goal was first reached."""
        self.dropped = 0
        """Values that were not written: no finite numbers, or too many at once."""
        self._goal = goal
        self._waiting: collections.deque[tuple[str, float, int]] = collections.deque()
        self._last: dict[str, int] = {}
        self._complained: set[str] = set()

    def add(self, name: str, value: Any, at_ns: int) -> None:
        """
        Take a value; on the training thread.

        Args:
            name: the name that the user gave.

            value: a number, or something that holds one on the host.

            at_ns: when.
        """
        number = _number(value)
        if number is None or len(self._waiting) >= _HOLD:
            self._refuse(name, value)
            return
        self._waiting.append((name, number, at_ns))

    def resolve(
        self, timeline: Timeline, *, final: bool, until: int | None = None
    ) -> Iterator[tuple[int, int, str, float]]:
        """
        Yield (step, time, key, value) of what can be placed now, in order.

        Args:
            timeline: says at which step a moment lies.

            final: whether what cannot be placed belongs to the run's last step.

            until: the last step to yield values of, None for all.
        """
        while self._waiting:
            name, value, at_ns = self._waiting[0]
            place = timeline.place(at_ns)
            if place is None:
                if not final:
                    return
                totals = timeline.totals()
                place = (totals.steps, totals.train_ns)
            step, train_ns = place
            if until is not None and step > until:
                return
            self._waiting.popleft()
            if (
                self._goal is not None
                and self.reached is None
                and name == self._goal.name
                and self._goal.reached(value)
            ):
                self.reached = (step, train_ns * 1e-9)
            key = SECTION + safe_key(name)
            if key != SECTION + name:
                self.names[key] = name
            if step <= self._last.get(key, -1):
                self._refuse(name, f"a second value at step {step}")
                continue
            self._last[key] = step
            yield step, at_ns, key, value

    def goal_values(self) -> dict[str, float]:
        """Return the series of the goal, once it is reached."""
        if self.reached is None:
            return {}
        return {"perf_time/to_goal_steps": float(self.reached[0]), "perf_time/to_goal_s": self.reached[1]}

    def _refuse(self, name: str, value: object) -> None:
        self.dropped += 1
        if name not in self._complained and len(self._complained) < 1000:
            self._complained.add(name)
            kind = value if isinstance(value, str) else f"{value!r}, a {type(value).__name__}"
            _log.warning(
                "trackperf: observe(%r) takes one finite number a step, on the host (got %.200s): left out, "
                "counted, and said once",
                name,
                kind,
            )


def _number(value: Any) -> float | None:
    """Return the finite number in `value`; never asks an accelerator, which would wait for it."""
    device = getattr(value, "device", None)
    if getattr(device, "type", "cpu") != "cpu" or isinstance(value, (str, bytes)):
        return None
    try:
        number = float(value)
    except Exception:  # noqa: BLE001 - the user's own object
        return None
    return number if math.isfinite(number) else None
