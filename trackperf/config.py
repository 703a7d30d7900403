"""The settings of a run, checked when they are made, so that nothing can go wrong over them later."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trackperf.devices.peaks import KINDS, kind_of_number
from trackperf.errors import ConfigError, NotAvailableError, did_you_mean
from trackperf.goal import Goal
from trackperf.names import bad_run_name
from trackperf.rules import Rule, build_rules
from trackperf.sink import Sink

if TYPE_CHECKING:
    from trackperf.record import Alert

__all__ = ["OPTIONS", "Settings", "check_options", "settings_from"]

T = TypeVar("T")

OPTIONS: Final = (
    "alerts",
    "baseline",
    "config",
    "devices",
    "dir",
    "enabled",
    "flops_dtype",
    "flops_per_step",
    "flops_per_token",
    "goal",
    "interval_s",
    "name",
    "on_alert",
    "prefix",
    "progress",
    "sink",
    "tags",
    "total_steps",
    "warmup_steps",
)
"""Names of the options of `init`."""

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off", ""})
_PREFIX: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `init` was asked for; see there for the meaning of each."""

    sinks: tuple[str | Sink, ...]
    name: str | None
    dir: Path
    config: Mapping[str, Any]
    tags: Mapping[str, str]
    interval_s: float | None
    warmup_steps: int
    total_steps: int | None
    prefix: str
    goal: Goal | None
    rules: tuple[Rule, ...]
    devices: tuple[str | int, ...] | None
    flops_per_step: float | None
    flops_per_token: float | None
    flops_dtype: str | None
    on_alert: Callable[[Alert], object] | None
    progress: bool
    enabled: bool


def check_options(given: Mapping[str, object]) -> None:
    """
    Refuse options that `init` does not have.

    Raises:
        ConfigError: with the nearest name.
    """
    for name in given:
        if name not in OPTIONS:
            raise ConfigError(
                f"init() has no option {name!r}.{did_you_mean(name, OPTIONS)} It has: {', '.join(OPTIONS)}."
            )


def settings_from(given: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """
    Return checked settings.

    Args:
        given: options of `init`; None means not given, and then `TRACKPERF_<NAME>` is read.

        environ: the environment, the process's own unless told.

    Raises:
        ConfigError: what was got, what is allowed, and what to do.

        NotAvailableError: the option belongs to a later version.
    """
    check_options(given)
    if given.get("baseline") is not None:
        raise NotAvailableError(
            "init(baseline=...) is not available in this version of trackperf. Leave it out."
        )
    source = _Source(given, os.environ if environ is None else environ)
    flops_per_step, flops_per_token = _flops(source)
    return Settings(
        sinks=_sinks(source.get("sink")),
        name=_name(source.get("name")),
        dir=Path(_typed("dir", source.get("dir") or "runs", (str, os.PathLike), "a path")),
        config=dict(_typed("config", given.get("config") or {}, Mapping, "a mapping of your settings")),
        tags=_tags(given.get("tags")),
        interval_s=source.number(
            "interval_s", "a number of seconds above 0, or None for automatic", above=0.0
        ),
        warmup_steps=source.whole("warmup_steps", least=0, default=10),
        total_steps=source.whole("total_steps", least=1, default=None),
        prefix=_prefix(source.get("prefix")),
        goal=_goal(source.get("goal")),
        rules=tuple(build_rules(given.get("alerts"))),
        devices=_devices(source.get("devices")),
        flops_per_step=flops_per_step,
        flops_per_token=flops_per_token,
        flops_dtype=_flops_dtype(source.get("flops_dtype")),
        on_alert=_callable("on_alert", given.get("on_alert")),
        progress=source.flag("progress", default=False),
        enabled=source.flag("enabled", default=True),
    )


class _Source:
    """An option as given, else as the environment says."""

    def __init__(self, given: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self._given = given
        self._environ = environ

    def get(self, name: str) -> Any:
        value = self._given.get(name)
        return (self._environ.get(f"TRACKPERF_{name.upper()}") or None) if value is None else value

    def number(self, name: str, allowed: str, *, above: float) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError):
            number = math.nan
        if not (math.isfinite(number) and number > above):
            raise ConfigError(_message(name, value, allowed))
        return number

    def whole(self, name: str, *, least: int, default: T) -> int | T:
        value = self.get(name)
        if value is None:
            return default
        text = str(value).strip()
        if isinstance(value, (bool, float)) or not text.lstrip("-").isdecimal() or int(text) < least:
            raise ConfigError(_message(name, value, f"a whole number, {least} or more"))
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
            return value.strip().lower() in _TRUE
        raise ConfigError(_message(name, value, "True or False"))


def _message(name: str, value: object, allowed: str) -> str:
    return f"init({name}=...) takes {allowed} (got {value!r}, a {type(value).__name__})."


def _typed(name: str, value: T, kinds: Any, allowed: str) -> T:
    if not isinstance(value, kinds):
        raise ConfigError(_message(name, value, allowed))
    return value


def _callable(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise ConfigError(_message(name, value, "a function of one argument, or None"))
    return value


def _sinks(value: Any) -> tuple[str | Sink, ...]:
    if value is None:
        return ("tensorboard",)
    if isinstance(value, str):
        names = tuple(part.strip() for part in value.split(",") if part.strip())
        if not names:
            raise ConfigError(_message("sink", value, "a sink's name, a Sink, or a list of them"))
        return names
    items = tuple(value) if isinstance(value, Sequence) else (value,)
    for item in items:
        if isinstance(item, type) or not isinstance(item, (str, Sink)):
            raise ConfigError(
                _message(
                    "sink", item, "a sink's name, a Sink (name, open, write, alert, close), or a list of them"
                )
            )
    return items


def _name(value: Any) -> str | None:
    if value is None:
        return None
    wrong = bad_run_name(value) if isinstance(value, str) else "it is no text"
    if wrong:
        raise ConfigError(f"init(name=...) takes a name that can be a folder (got {value!r}: {wrong}).")
    return str(value)


def _tags(value: Any) -> Mapping[str, str]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    raise ConfigError(_message("tags", value, 'a mapping of texts, such as {"model": "resnet50"}'))


def _prefix(value: Any) -> str:
    if value is None:
        return "perf"
    if not isinstance(value, str) or not value or not set(value) <= _PREFIX:
        raise ConfigError(_message("prefix", value, "lower-case letters, digits and underscores"))
    return value


def _devices(value: Any) -> tuple[str | int, ...] | None:
    if value is None:
        return None
    items: tuple[Any, ...] = tuple(value.split(",")) if isinstance(value, str) else (value,)
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = tuple(value)
    found: list[str | int] = []
    for item in items:
        text = str(item).strip()
        known = isinstance(item, (str, int)) and not isinstance(item, bool)
        if not known or not (text.isdecimal() or text.startswith(("GPU-", "MIG-"))):
            raise ConfigError(_message("devices", item, "UUIDs (GPU-..., MIG-...) or the driver's indices"))
        found.append(int(text) if text.isdecimal() else text)
    return tuple(found) or None


def _flops(source: _Source) -> tuple[float | None, float | None]:
    step, token = (
        source.number(
            f"flops_per_{what}", "a number of floating-point operations above 0, or None", above=0.0
        )
        for what in ("step", "token")
    )
    if step is not None and token is not None:
        raise ConfigError(
            f"init() takes flops_per_step or flops_per_token, not both (got {step:g} and {token:g}). With "
            "sequences of varying length it is flops_per_token that stays right."
        )
    return step, token


def _flops_dtype(value: Any) -> str | None:
    if value is None:
        return None
    kind = kind_of_number(str(value))
    if kind is None:
        raise ConfigError(_message("flops_dtype", value, f"one of {', '.join(KINDS)}"))
    return kind


def _goal(value: Any) -> Goal | None:
    return None if value is None else value if isinstance(value, Goal) else Goal.parse(value)
