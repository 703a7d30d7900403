"""Short windows put together: one step between two evaluations is not judged as two seconds are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Pool"]


class Pool:
    """Holds windows back until they are long enough together."""

    def __init__(self, least_s: float) -> None:
        """
        Args:
            least_s: seconds of steps below which nothing is judged.
        """
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
