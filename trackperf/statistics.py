"""A run in a few numbers: statistics of the steady windows."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from trackperf.metrics import full_key
from trackperf.record import Stat
from trackperf.timing.windows import Distribution, Window
from trackperf.values import window_values

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RunStatistics"]


class RunStatistics:
    """Grows by a window at a time, in bounded memory."""

    def __init__(self) -> None:
        self._all: Window | None = None
        self._by_key: dict[str, Distribution] = {}

    def add(self, window: Window, values: Mapping[str, float]) -> None:
        """Take a steady window and its values by catalogue key."""
        if self._all is None:
            self._all = copy.deepcopy(window)
        else:
            self._all.merge(window)
        for key, value in values.items():
            found = self._by_key.get(key)
            if found is None:
                found = self._by_key[key] = Distribution()
            found.add_one(value)

    def stats(self, world_size: int, accelerator: str | None, prefix: str) -> dict[str, Stat]:
        """Return statistics by series key: means are sums over sums, quantiles are of the windows' values."""
        if self._all is None:
            return {}
        means = window_values(self._all, world_size=world_size, accelerator=accelerator)
        return {
            full_key(key, prefix): Stat(
                mean=means.get(key, found.total / found.n),
                p50=found.quantile(0.5),
                p95=found.quantile(0.95),
                n=found.n,
            )
            for key, found in self._by_key.items()
        }
