"""
Records to JSON and back: what the sinks that keep text, and their readers, share.

A reader of an older or newer version of trackperf meets fields that it does not know (left out) and misses
fields that it does (their default stands). JSON has no word for infinity or for "not a number", so none is
written: such a value becomes null in a user's settings, and cannot be in a record's own fields.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from trackperf.record import Alert, RunInfo, RunSummary, Stat

__all__ = ["from_json", "plain", "to_json"]

Record = TypeVar("Record", Alert, RunInfo, RunSummary)

_DEPTH: Final = 12


def plain(value: Any, _depth: int = 0) -> Any:
    """
    Return `value` as JSON can carry it: text for what it has no type for, null for NaN and infinity.

    Never raises: a user's settings may hold anything, themselves included.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if _depth < _DEPTH:
        if isinstance(value, Mapping):
            return {str(key): plain(item, _depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [plain(item, _depth + 1) for item in value]
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a user's own object may fail to describe itself
        return f"<{type(value).__name__}>"


def to_json(record: Alert | RunInfo | RunSummary) -> str:
    """Return a record as one line of JSON."""
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    if isinstance(record, RunSummary):
        fields["metrics"] = {key: dataclasses.asdict(stat) for key, stat in record.metrics.items()}
        fields["alerts"] = [dataclasses.asdict(alert) for alert in record.alerts]
    return json.dumps(plain(fields), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(kind: type[Record], text: str | bytes) -> Record:
    """
    Return the record that `to_json` wrote.

    Raises:
        ValueError: the text is not JSON of such a record.
    """
    loaded = json.loads(text)
    if not isinstance(loaded, dict):
        raise ValueError(f"a {kind.__name__} is a JSON object (got {type(loaded).__name__})")  # noqa: TRY004
    try:
        if kind is RunSummary:
            stats = loaded.get("metrics") or {}
            loaded["metrics"] = {key: Stat(**_known(Stat, stat)) for key, stat in stats.items()}
            alerts = loaded.get("alerts") or ()
            loaded["alerts"] = tuple(Alert(**_known(Alert, alert)) for alert in alerts)
        return kind(**_known(kind, loaded))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from error


def _known(kind: type[Any], loaded: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {key: value for key, value in loaded.items() if key in names}
