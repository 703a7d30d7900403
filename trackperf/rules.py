"""The rules of a run: those that ship, as the settings of `init(alerts=)` change them, and the user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from trackperf.errors import ConfigError, did_you_mean
from trackperf.expressions import own_rule
from trackperf.rule import Rule
from trackperf.shipped import SHIPPED

__all__ = ["SHIPPED", "Rule", "build_rules"]

_EXAMPLE: Final = 'alerts={"loader_latency": {"threshold": 20, "windows": 5}}'
_SETTINGS: Final = ("threshold", "clear", "windows", "clear_windows", "min_steps", "cooldown_s", "level")
_LATER: Final = ("baseline_regression", "straggler")


def build_rules(settings: Mapping[str, Any] | bool | None = None) -> list[Rule]:
    """
    Return the rules that `init(alerts=)` asks for.

    Args:
        settings: None or True for the shipped rules, False for none, or a mapping of a rule's name to False
            (without it), True (as shipped) or a mapping of the settings that differ. Rules that are not
            named stay as shipped. A new threshold moves the clear level in proportion, unless that is given.
            Any other name is a rule of the user's own: a condition such as
            `"perf/data_pct > 15 for 5 windows"`, a function of a window's values, or a mapping with either as
            `when` beside its settings.

    Raises:
        ConfigError: a rule, a series or a setting that does not exist, or a value that cannot work.
    """
    if settings is None or isinstance(settings, bool):
        return [] if settings is False else list(SHIPPED)
    if not isinstance(settings, Mapping):
        raise ConfigError(f"alerts must be True, False or a mapping such as {_EXAMPLE} (got {settings!r})")
    names = [rule.name for rule in SHIPPED]
    own = {name: given for name, given in settings.items() if name not in names}
    for name, given in own.items():
        _check_own(name, given, names)
    rules = (_adjusted(rule, settings.get(rule.name, True)) for rule in SHIPPED)
    return [rule for rule in rules if rule is not None] + [own_rule(name, own[name]) for name in own]


def _check_own(name: object, given: object, names: list[str]) -> None:
    """Refuse what is more likely a shipped rule misspelt than one of the user's own."""
    if isinstance(name, str) and name in _LATER:
        raise ConfigError(
            f"alerts: the rule {name!r} is not available in this version. Rules: {', '.join(names)}."
        )
    has_condition = (
        isinstance(given, str) or callable(given) or (isinstance(given, Mapping) and "when" in given)
    )
    if not isinstance(name, str) or not has_condition:
        raise ConfigError(
            f"alerts: there is no rule {name!r}.{did_you_mean(str(name), names)} "
            f"Rules: {', '.join(names)}; a rule of your own takes a condition."
        )


def _adjusted(rule: Rule, change: Any) -> Rule | None:
    if isinstance(change, bool):
        return rule if change else None
    if not isinstance(change, Mapping):
        raise ConfigError(
            f"alerts[{rule.name!r}] must be True, False or a mapping of settings, as in {_EXAMPLE} "
            f"(got {change!r}). A rule of your own takes another name."
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
        changes["clear"] = _moved(rule, checked.threshold)
    return dataclasses.replace(rule, **changes)


def _moved(rule: Rule, threshold: float) -> float:
    """Return the clear level in proportion to a new threshold; no share gets beyond 100 %."""
    clear = threshold * rule.clear / rule.threshold
    return min(clear, (threshold + 100) / 2) if rule.is_share and rule.direction == "below" else clear
