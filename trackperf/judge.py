"""Judging windows by the alert rules, with advice from the loader and the device at hand."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from trackperf.advice import advise_loader
from trackperf.alerts import AlertEngine
from trackperf.devices.accelerator import accelerator_in_use
from trackperf.devices.host import allowed_cpus
from trackperf.remedies import (
    advise_drop,
    advise_heat,
    advise_kernels,
    advise_memory,
    advise_startup,
    advise_transfer,
)
from trackperf.shipped import DATA_SHARE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackperf.loaders import LoaderFacts
    from trackperf.record import Alert
    from trackperf.rule import Rule
    from trackperf.steady import Steady
    from trackperf.timing.windows import Window

__all__ = ["Judge"]

_log: Final = logging.getLogger("trackperf")
_SETTLED: Final = 5
"""Windows after which an input that never came is one that is not there."""


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
        self._windows = 0
        self._own = {rule.name for rule in rules if rule.own}
        self._engine = AlertEngine(rules, clock=lambda: self._now_ns, uses_device=_uses_device)

    @property
    def abstained(self) -> Mapping[str, str]:
        """Rules that could not be judged so far, each with the reason."""
        return self._engine.abstained

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
            loud = alert.state == "raised" and alert.level == "warning"
            said = f"{alert.cause} {alert.advice}".strip()
            level = logging.WARNING if loud else logging.INFO
            _log.log(level, "trackperf: %s %s at step %d: %s", alert.rule, alert.state, alert.step, said)
        self.alerts += found
        self._windows += 1
        if self._windows == _SETTLED:
            self._tell_abstained()
        return found

    def flags(self) -> dict[str, float]:
        """Return `perf_alert/...`: which rules are raised now; those without inputs are not among them."""
        return self._engine.flags()

    def _tell_abstained(self) -> None:
        """Say once which rules cannot be judged: aloud where the user has written the rule."""
        for name, reason in self.abstained.items():
            level = logging.WARNING if name in self._own else logging.INFO
            _log.log(level, "trackperf: the alert %s is not judged so far: %s", name, reason)

    def _advise(self, rule: Rule, values: Mapping[str, float], steady: Steady) -> str:
        texts = {
            "loader_latency": lambda: self._advise_loader(values),
            "loader_startup": lambda: advise_startup(values, self.loader),
            "gpu_underused": lambda: self._advise_underused(values),
            "gpu_busy_inefficient": lambda: advise_kernels(values),
            "bandwidth_bound": lambda: advise_transfer(values),
            "gpu_memory": lambda: advise_memory(values),
            "gpu_temperature": lambda: advise_heat(values),
            "throughput_drop": lambda: advise_drop(values, steady),
        }
        return texts[rule.name]() if rule.name in texts else ""

    def _advise_loader(self, values: Mapping[str, float]) -> str:
        if self.loader is None:
            return ""
        return advise_loader(
            values, self.loader, allowed_cpus=allowed_cpus(), cuda=accelerator_in_use() == "cuda"
        )

    def _advise_underused(self, values: Mapping[str, float]) -> str:
        starving = values.get("perf/data_pct", 0.0) > DATA_SHARE
        return (self._advise_loader(values) if starving else "") or advise_kernels(values)


def _uses_device() -> bool:
    """
    Return whether the training uses a device.

    A torch that trains on the CPU does not, even where `init(devices=)` names one; of a training without
    torch nothing is known but that the user has named its devices.
    """
    return accelerator_in_use() is not None or "torch" not in sys.modules
