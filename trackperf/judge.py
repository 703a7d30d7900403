"""Judging windows by the alert rules, with advice from the loader at hand."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from trackperf.advice import advise_loader
from trackperf.alerts import AlertEngine
from trackperf.devices.accelerator import accelerator_in_use
from trackperf.devices.host import allowed_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackperf.loaders import LoaderFacts
    from trackperf.record import Alert
    from trackperf.rules import Rule
    from trackperf.timing.windows import Window

__all__ = ["Judge"]

_log: Final = logging.getLogger("trackperf")


class Judge:
    """The run's alerts: what was raised and cleared so far, and what is raised now."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """
        Args:
            rules: the rules to judge by.
        """
        self.alerts: list[Alert] = []
        """Alerts so far, in order."""
        self.loader: LoaderFacts | None = None
        """What the run's first loader is; None before it is known."""
        self._now_ns = 0
        self._engine = AlertEngine(rules, clock=lambda: self._now_ns)

    def judge(self, window: Window, values: Mapping[str, float], wall_time: float) -> list[Alert]:
        """
        Return the alerts that a steady window raises or clears; each is logged once.

        Args:
            window: the window that closed.

            values: its values by catalogue key.

            wall_time: seconds since the epoch at its end.
        """
        self._now_ns = window.end_ns
        found = self._engine.judge(
            values,
            step=window.totals.steps,
            steps=window.steps,
            wall_time=wall_time,
            advise=self._advise,
        )
        for alert in found:
            level = logging.WARNING if alert.state == "raised" else logging.INFO
            said = f"{alert.cause} {alert.advice}".strip()
            _log.log(level, "trackperf: %s %s at step %d: %s", alert.rule, alert.state, alert.step, said)
        self.alerts += found
        return found

    def flags(self) -> dict[str, float]:
        """Return `perf_alert/...`: which rules are raised now."""
        return self._engine.flags()

    def _advise(self, rule: Rule, values: Mapping[str, float]) -> str:
        if rule.name != "loader_latency" or self.loader is None:
            return ""
        return advise_loader(
            values, self.loader, allowed_cpus=allowed_cpus(), cuda=accelerator_in_use() == "cuda"
        )
