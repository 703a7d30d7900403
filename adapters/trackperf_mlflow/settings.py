"""A run's settings as MLflow's params, and its tags."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trackperf.names import safe_key

if TYPE_CHECKING:
    from trackperf.record import RunInfo

__all__ = ["Settings", "settings", "shown_tags"]

OWN: Final = "trackperf."
"""What the names of params and tags begin with that are not the user's own."""

_MAX_PARAM: Final = 500
_MAX_TAG: Final = 5000
_MAX_SETTINGS: Final = 500
_MAX_DEPTH: Final = 8


class Settings(NamedTuple):
    """Settings ready to be stored."""

    params: dict[str, str]
    skipped: tuple[str, ...]
    """Names of those left out: NaN, infinity, or too many."""


def settings(run: RunInfo, *, guest: bool) -> Settings:
    """
    Return the run's settings, flat: the user's, the loader's, and the facts of the machine.

    A param is written once and for all. So in a run of the user's even their own settings get names of ours:
    a script that logs the same name itself must find it free.

    Args:
        run: the run.

        guest: whether it is written into a run of the user's.
    """
    own = f"{OWN}config." if guest else ""
    sources = (
        (own, run.config),
        (f"{OWN}loader.", run.loader),
        (f"{OWN}env.", {**run.environment, "world_size": run.world_size}),
    )
    params: dict[str, str] = {}
    skipped: list[str] = []
    for before, values in sources:
        for name, value in _flatten(values, "", 0):
            key = safe_key(f"{before}{name}")
            if value is None or len(params) >= _MAX_SETTINGS:
                skipped.append(key)
            else:
                params.setdefault(key, value[:_MAX_PARAM])
    return Settings(params, tuple(skipped))


def shown_tags(run: RunInfo) -> dict[str, str]:
    """Return the user's tags, and the one that finds the run again."""
    tags = {safe_key(name): value[:_MAX_TAG] for name, value in run.tags.items() if name}
    return {**tags, f"{OWN}run_id": run.run_id}


def _flatten(values: Mapping[str, Any], before: str, depth: int) -> Iterator[tuple[str, str | None]]:
    """Yield names and texts; None for a number that is none."""
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _flatten(value, f"{name}.", depth + 1)
        elif isinstance(value, float) and not math.isfinite(value):
            yield name, None
        else:
            yield name, _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a user's own object may fail to describe itself
        return f"<{type(value).__name__}>"
