"""The rules that alerts are raised by: what is judged, against which levels, and the settings of both."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from trackperf.errors import ConfigError, did_you_mean
from trackperf.text import duration, percent

if TYPE_CHECKING:
    from trackperf.record import Level

__all__ = ["SHIPPED", "Rule", "build_rules"]

_EXAMPLE: Final = 'alerts={"loader_latency": {"threshold": 20, "windows": 5}}'


def _no_text(values: Mapping[str, float]) -> str:  # noqa: ARG001 - the shape of a writer
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    One condition on one series, with everything that keeps it from crying wolf.

    It is raised when the value lies beyond `threshold` for `windows` windows in a row and over at least
    `min_steps` steps, and clears when the value lies on the healthy side of `clear` for `clear_windows`.
    A window between the two levels neither counts nor breaks a row, as long as the row as a whole
    stays beyond the threshold.
    """

    name: str
    """Lower case, digits and underscores: it becomes the series `perf_alert/<name>`."""

    level: Level
    """How loud it is."""

    key: str
    """Catalogue key of the series that is judged, such as `perf/data_pct`."""

    threshold: float
    """The level beyond which a window counts, in the unit of the series."""

    clear: float
    """The level at whose healthy side a window counts towards the end of the alert."""

    direction: Literal["above", "below"] = "above"
    """On which side of the threshold the trouble lies."""

    windows: int = 3
    """Windows in a row that raise it."""

    clear_windows: int = 3
    """Windows in a row that clear it."""

    min_steps: int = 6
    """Steps that the windows must cover together: three windows of one long step prove little."""

    cooldown_s: float = 600.0
    """Seconds after it cleared in which it tells nobody when it is raised again."""

    cause: Callable[[Mapping[str, float]], str] = _no_text
    """Writes what is wrong, with its evidence, from the values of the window."""

    advice: Callable[[Mapping[str, float]], str] = _no_text
    """Writes what to do where nothing better is known."""

    def __post_init__(self) -> None:
        """Refuse levels and counts that could never work."""
        if not self.name.isidentifier() or self.name != self.name.lower():
            raise ConfigError(f"a rule's name is lower case, digits and underscores (got {self.name!r})")
        for field, limit in (("threshold", -math.inf), ("clear", -math.inf), ("cooldown_s", 0)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ConfigError(f"alert {self.name}: {field} must be a finite number (got {value!r})")
            if value < limit:
                raise ConfigError(f"alert {self.name}: {field} must be at least {limit} (got {value!r})")
        for field in ("windows", "clear_windows", "min_steps"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"alert {self.name}: {field} must be a whole number from 1 (got {value!r})")
        for field, allowed in (("level", ("notice", "warning")), ("direction", ("above", "below"))):
            if (value := getattr(self, field)) not in allowed:
                raise ConfigError(f"alert {self.name}: {field} must be one of {allowed} (got {value!r})")
        self._check_levels()

    def _check_levels(self) -> None:
        if self.key.endswith("_pct") and not 0 < self.threshold < 100:
            raise ConfigError(
                f"alert {self.name}: threshold is a share in per cent between 0 and 100, both excluded "
                f"(got {self.threshold!r})"
            )
        if self.excess(self.clear) > 0:
            side = "at or below" if self.direction == "above" else "at or above"
            raise ConfigError(
                f"alert {self.name}: the clear level must lie {side} the threshold "
                f"(got clear={self.clear!r}, threshold={self.threshold!r})"
            )

    def excess(self, value: float) -> float:
        """Return how far a value lies beyond the threshold; negative on the healthy side."""
        return value - self.threshold if self.direction == "above" else self.threshold - value

    def is_clear(self, value: float) -> bool:
        """Return whether a value lies on the healthy side of the clear level."""
        return value < self.clear if self.direction == "above" else value > self.clear


def _loader_cause(values: Mapping[str, float]) -> str:
    share = values["perf/data_pct"]
    cause = f"the loader keeps the training waiting for {percent(share)} of each step"
    step_ms = values.get("perf/step_ms")
    if step_ms is None:
        return cause
    return f"{cause} ({duration(share * step_ms / 1e5)} of {duration(step_ms / 1e3)})"


def _loader_advice(values: Mapping[str, float]) -> str:  # noqa: ARG001 - the shape of a writer
    return "Prepare batches in the background (num_workers of a DataLoader), or prepare less for each."


SHIPPED: Final = (
    Rule(
        name="loader_latency",
        level="warning",
        key="perf/data_pct",
        threshold=10.0,
        clear=8.0,
        cause=_loader_cause,
        advice=_loader_advice,
    ),
)
"""The rules that stand when the user says nothing."""

_SETTINGS: Final = ("threshold", "clear", "windows", "clear_windows", "min_steps", "cooldown_s", "level")


def build_rules(settings: Mapping[str, bool | Mapping[str, Any]] | bool | None = None) -> list[Rule]:
    """
    Return the rules that `init(alerts=)` asks for.

    Args:
        settings: None or True for the shipped rules, False for none, or a mapping of a rule's name to False
            (without it), True (as shipped) or a mapping of the settings that differ. Rules that are not
            named stay as shipped. A new threshold moves the clear level in proportion, unless that is given.

    Raises:
        ConfigError: a rule or a setting that does not exist, or a value that cannot work.
    """
    if settings is None or isinstance(settings, bool):
        return [] if settings is False else list(SHIPPED)
    if not isinstance(settings, Mapping):
        raise ConfigError(f"alerts must be True, False or a mapping such as {_EXAMPLE} (got {settings!r})")
    names = [rule.name for rule in SHIPPED]
    for name in settings:
        if name not in names:
            raise ConfigError(
                f"alerts: there is no rule {name!r}.{did_you_mean(str(name), names)} "
                f"Rules: {', '.join(names)}."
            )
    rules = (_adjusted(rule, settings.get(rule.name, True)) for rule in SHIPPED)
    return [rule for rule in rules if rule is not None]


def _adjusted(rule: Rule, change: bool | Mapping[str, Any]) -> Rule | None:
    if isinstance(change, bool):
        return rule if change else None
    if not isinstance(change, Mapping):
        raise ConfigError(
            f"alerts[{rule.name!r}] must be True, False or a mapping of settings, as in {_EXAMPLE} "
            f"(got {change!r})"
        )
    for field in change:
        if field not in _SETTINGS:
            raise ConfigError(
                f"alerts[{rule.name!r}] has no setting {field!r}.{did_you_mean(str(field), _SETTINGS)} "
                f"Settings: {', '.join(_SETTINGS)}."
            )
    changes = dict(change)
    if "threshold" in changes and "clear" not in changes:
        checked = dataclasses.replace(rule, threshold=changes["threshold"], clear=changes["threshold"])
        changes["clear"] = checked.threshold * rule.clear / rule.threshold
    return dataclasses.replace(rule, **changes)
