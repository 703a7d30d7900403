"""Rules of the user's own: a condition on series in a line of text, or a function of a window's values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from trackperf.errors import ConfigError, did_you_mean
from trackperf.metrics import CATALOGUE
from trackperf.rule import Rule, Side
from trackperf.text import number

if TYPE_CHECKING:
    from trackperf.rule import Values
    from trackperf.steady import Steady

__all__ = ["JUDGED", "own_rule"]

JUDGED: Final = tuple(
    key
    for key in CATALOGUE
    if not key.startswith(("perf_time/", "perf_alert/"))
    and key not in ("perf/train_s", "perf_self/dropped_points")
)
"""Series that a window has a value of, and a rule can judge."""

_EXAMPLE: Final = '"perf/data_pct > 15 for 5 windows"'
_SETTINGS: Final = ("when", "clear", "windows", "clear_windows", "min_steps", "cooldown_s", "level")
_ROW: Final = re.compile(r"\s+for\s+(\d+)\s+windows?\s*$")
_TERM: Final = re.compile(r"\s*([^\s<>=!]+)\s*([<>=!]+)\s*(\S+?)\s*(%|[A-Za-z/]+)?\s*")
_OF_ONE: Final = re.compile(r"^perf_gpu\d+/")
_MARGIN: Final = 0.1


class _Term(NamedTuple):
    """One comparison, such as `perf/data_pct > 15`."""

    key: str
    direction: Literal["above", "below"]
    threshold: float

    @property
    def clear(self) -> float:
        """The level at which it counts as over: a tenth further, but never one that cannot be."""
        margin = _MARGIN * abs(self.threshold)
        if self.direction == "above":
            return self.threshold - margin
        far = self.threshold + margin
        return min(far, (self.threshold + 100) / 2) if self.key.endswith("_pct") else far

    def holds(self, value: float, *, raised: bool) -> bool:
        """Return whether a value fulfils it, with the slack of an alert that is raised."""
        limit = self.clear if raised else self.threshold
        return value > limit if self.direction == "above" else value < limit

    def said(self, values: Values) -> str:
        metric = CATALOGUE[_OF_ONE.sub("perf_gpu/", self.key)]
        unit = "" if metric.unit == "1" else f" {metric.unit}"
        place = self.key.split("/")[0].removeprefix("perf_gpu")
        title = f"{metric.title} of GPU {place}" if place.isdecimal() else metric.title
        return (
            f"{title} is {number(values[self.key])}{unit} ({self.direction} {number(self.threshold)}{unit})"
        )


def own_rule(name: str, given: Any) -> Rule:
    """
    Return a rule of the user's own.

    Args:
        name: what it is called; it becomes the series `perf_alert/<name>`.

        given: a condition, a function, or a mapping with either as `when` beside the settings of a rule.

    Raises:
        ConfigError: a series that is not judged, with the nearest one, or what cannot be read as a condition.
    """
    settings = dict(given) if isinstance(given, Mapping) else {"when": given}
    plain = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    if plain != name or not name.isidentifier() or name == "active":
        hint = f" Write {plain!r}." if plain.isidentifier() and plain not in (name, "active") else ""
        raise ConfigError(
            "alerts: a rule's name is lower case, digits and underscores, and not 'active' "
            f"(got {name!r}).{hint}"
        )
    for field in settings:
        if field not in _SETTINGS:
            raise ConfigError(
                f"alerts[{name!r}] has no setting {field!r}.{did_you_mean(str(field), _SETTINGS)} "
                f"Settings: {', '.join(_SETTINGS)}."
            )
    when = settings.pop("when")
    fields = _of_text(name, when) if isinstance(when, str) else _of_function(name, when)
    return Rule(**{"name": name, "level": "warning", "min_steps": 1, "own": True, **fields, **settings})


def _of_text(name: str, text: str) -> dict[str, Any]:
    row = _ROW.search(text)
    terms = [_term(name, part) for part in re.split(r"\s+and\s+", text[: row.start()] if row else text)]
    first, rest = terms[0], terms[1:]

    def side(values: Values, steady: Steady, raised: bool) -> Side | str:  # noqa: ARG001 - a shape
        for term in rest:
            value = values.get(term.key)
            if value is None:
                return f"{term.key} is not measured"
            if not term.holds(value, raised=raised):
                return Side.HEALTHY
        return Side.BY_VALUE

    def cause(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
        return " and ".join(term.said(values) for term in terms)

    return {
        "key": first.key,
        "threshold": first.threshold,
        "clear": first.clear,
        "direction": first.direction,
        "windows": int(row[1]) if row else 3,
        "side": side,
        "cause": cause,
    }


def _term(name: str, text: str) -> _Term:
    found = _TERM.fullmatch(text)
    try:
        threshold = float(found[3]) if found else math.nan
    except ValueError:
        threshold = math.nan
    if found is None or found[2] not in (">", "<", ">=", "<=") or not math.isfinite(threshold):
        raise ConfigError(
            f"alerts[{name!r}]: {text.strip()!r} is not a condition such as {_EXAMPLE}: a series, > or <, "
            "and a number; several are joined by 'and'."
        )
    key = found[1]
    if _OF_ONE.sub("perf_gpu/", key) not in JUDGED:
        why = "is not judged window by window" if key in CATALOGUE else "does not exist"
        raise ConfigError(
            f"alerts[{name!r}]: the series {key!r} {why}.{did_you_mean(key, JUDGED)} "
            "They are listed in the README, and `trackperf doctor` says which are measured here."
        )
    above = found[2][0] == ">"
    if found[2].endswith("="):
        # A value that lies on the level is not beyond it, so the level goes the least bit to the other side.
        threshold = math.nextafter(threshold, -math.inf if above else math.inf)
    return _Term(key, "above" if above else "below", threshold)


def _of_function(name: str, function: Callable[[Values], Any] | Any) -> dict[str, Any]:
    if not callable(function):
        raise ConfigError(
            f"alerts[{name!r}] takes a condition such as {_EXAMPLE}, or a function of a window's values "
            f"(got {function!r}, a {type(function).__name__})."
        )

    def measure(values: Values, steady: Steady) -> float | str:  # noqa: ARG001 - the shape of a measure
        said = function(values)
        return "its function says nothing" if said is None else float(bool(said))

    def cause(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
        said = function(values)
        return said if isinstance(said, str) else f"{name} holds"

    return {
        "key": f"perf_alert/{name}",
        "title": name,
        "threshold": 0.5,
        "clear": 0.5,
        "inputs": ("perf/step_ms",),
        "measure": measure,
        "cause": cause,
    }
