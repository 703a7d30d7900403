"""What a rule is: a condition on a window, and everything that keeps it from crying wolf."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from trackperf.errors import ConfigError
from trackperf.steady import Steady

if TYPE_CHECKING:
    from trackperf.record import Level

__all__ = ["Measure", "Rule", "Side", "Values", "Writer"]

Values: TypeAlias = Mapping[str, float]
"""Values of a window by catalogue key."""

Measure: TypeAlias = Callable[[Values, Steady], "float | str"]
"""Returns the value that is judged, or why there is none."""

Writer: TypeAlias = Callable[[Values, Steady], str]
"""Writes a sentence from a window and what is usual in the run."""


class Side(enum.Enum):
    """What the inputs beside the value say about a window."""

    BY_VALUE = "by value"
    """The value decides."""

    BEYOND = "beyond"
    """The window counts towards the alert whatever the value is."""

    HEALTHY = "healthy"
    """The window counts against it whatever the value is."""


def _no_text(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
    return ""


def _by_value(values: Values, steady: Steady, raised: bool) -> Side | str:  # noqa: ARG001 - a shape
    return Side.BY_VALUE


def _never(values: Values) -> bool:  # noqa: ARG001 - the shape of a condition
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    One condition on one value, and the settings of when it is told.

    It is raised when the value lies beyond `threshold` for `windows` windows in a row and over at least
    `min_steps` steps, and clears when the value lies on the healthy side of `clear` for `clear_windows`.
    A window between the two levels neither counts nor breaks a row, as long as the row as a whole
    stays beyond the threshold. A window without the value, or for which `side` returns
    a text, is passed over.
    """

    name: str
    """Lower case, digits and underscores: it becomes the series `perf_alert/<name>`."""

    level: Level
    """How loud it is."""

    key: str
    """Catalogue key of the series that is judged, such as `perf/data_pct`."""

    threshold: float
    """The level beyond which a window counts, in the unit of the value."""

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

    title: str = ""
    """What the value is, for sentences; that of the series where it is empty."""

    unit: str = ""
    """Unit of the value; that of the series where it is empty."""

    inputs: tuple[str, ...] = ()
    """Series of which one must be measured for the rule to have a flag; `key` where it is empty."""

    of_device: bool = False
    """Whether it judges how the training uses a device, which only a training that uses one can be asked."""

    own: bool = False
    """Whether the user wrote it."""

    measure: Measure | None = None
    """Returns the value; None for that of the series."""

    side: Callable[[Values, Steady, bool], Side | str] = _by_value
    """Says what other inputs make of the window, given whether the rule is raised, or why they cannot."""

    louder: Callable[[Values], bool] = _never
    """Whether a window's evidence makes a notice a warning; most windows of the row must."""

    cause: Writer = _no_text
    """Writes what is wrong, with its evidence."""

    advice: Writer = _no_text
    """Writes what to do where nothing better is known."""

    def __post_init__(self) -> None:
        """Refuse levels and counts that could never work."""
        if not self.name.isidentifier() or not self.name.isascii() or self.name != self.name.lower():
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
        if self.is_share and not 0 < self.threshold < 100:
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

    @property
    def is_share(self) -> bool:
        """Whether the value is a share in per cent."""
        return self.unit == "%" if self.unit else self.key.endswith("_pct")

    def value(self, values: Values, steady: Steady) -> float | str:
        """Return the value of a window, or why there is none."""
        if self.measure is not None:
            return self.measure(values, steady)
        value = values.get(self.key)
        return f"{self.key} is not measured" if value is None else value

    def excess(self, value: float) -> float:
        """Return how far a value lies beyond the threshold; negative on the healthy side."""
        return value - self.threshold if self.direction == "above" else self.threshold - value

    def is_clear(self, value: float) -> bool:
        """Return whether a value lies on the healthy side of the clear level."""
        return value < self.clear if self.direction == "above" else value > self.clear
