"""From windows to points: how many windows make one, and what it says beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trackperf.timing.timeline import WINDOW_NS
from trackperf.values import total_values, window_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackperf.timing.windows import Window

__all__ = ["PointMaker", "Ready"]

_POINTS: Final = 5000
"""Left to itself, a run of any length makes about as many points in each doubling of its length."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A point that is due."""

    step: int
    at_ns: int
    values: dict[str, float]


class PointMaker:
    """Merges windows until a point is due: by its interval, and at the end of the warm-up."""

    def __init__(
        self,
        *,
        interval_s: float | None,
        total_steps: int | None,
        world_size: int,
    ) -> None:
        """
        Args:
            interval_s: seconds between points; None for automatic.

            total_steps: steps of the whole run; None when unknown.

            world_size: number of ranks.
        """
        self._interval_s = interval_s
        self._total_steps = total_steps
        self._world_size = world_size
        self._window: Window | None = None
        self._flags: dict[str, float] = {}
        self._written_ns: int | None = None
        self._steady_from: tuple[int, int] | None = None

    def add(
        self,
        window: Window,
        *,
        flags: Mapping[str, float],
        warm: bool,
        accelerator: str | None,
    ) -> list[Ready]:
        """
        Take a window and return the points that are due, in order.

        Args:
            window: the window that closed.

            flags: which alerts are raised, by catalogue key.

            warm: whether this window ends the warm-up.

            accelerator: see `values.window_values`.
        """
        due: list[Ready] = []
        if self._window is not None and self._window.phase != window.phase:
            due += self.flush(accelerator)
        for key, flag in flags.items():
            self._flags[key] = max(flag, self._flags.get(key, 0.0))
        if window.phase == "train" and self._steady_from is None:
            self._steady_from = (
                window.totals.wall_ns - (window.end_ns - window.start_ns),
                window.totals.steps - window.steps,
            )
        if self._window is None:
            self._window = window
        else:
            self._window.merge(window)
        if warm or (window.phase == "train" and self._is_due(window)):
            due += self.flush(accelerator)
        return due

    def flush(self, accelerator: str | None) -> list[Ready]:
        """Return what is there as a point, if anything is."""
        window, self._window = self._window, None
        if window is None:
            return []
        values = window_values(
            window,
            world_size=self._world_size,
            accelerator=accelerator,
            counted=window.phase == "train",
        )
        values |= total_values(window.totals) | window.reading_values()
        values |= self._flags | self._eta(window)
        self._flags = {}
        self._written_ns = window.end_ns
        return [Ready(window.totals.steps, window.end_ns, values)]

    def _is_due(self, window: Window) -> bool:
        if self._written_ns is None:
            return True
        if self._interval_s is not None:
            return window.end_ns - self._written_ns >= self._interval_s * 1e9
        return window.end_ns - self._written_ns >= max(WINDOW_NS, window.totals.wall_ns / _POINTS)

    def _eta(self, window: Window) -> dict[str, float]:
        if self._total_steps is None or self._steady_from is None:
            return {}
        wall_ns, steps = self._steady_from
        steps = window.totals.steps - steps
        if steps <= 0:
            return {}
        step_s = (window.totals.wall_ns - wall_ns) / steps * 1e-9
        return {"perf_time/eta_s": max(0, self._total_steps - window.totals.steps) * step_s}
