"""Alerts in words: the run's description on its page, a table among its files, and tags to search by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from trackperf_mlflow.settings import OWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackperf.record import Alert

__all__ = ["NOTE", "TABLE", "TABLES", "alert_table", "alert_tags", "described", "listed_tables"]

NOTE: Final = "mlflow.note.content"
"""The tag that MLflow's page shows as the run's description."""

TABLE: Final = "trackperf/alerts.json"
"""The file with all alerts, in the form of MLflow's tables."""

TABLES: Final = "mlflow.loggedArtifacts"
"""The tag that lists the files which MLflow's page shows as tables."""

_BEGIN: Final = "[//]: # (trackperf)"
_END: Final = "[//]: # (/trackperf)"
_LONGEST: Final = 4500
_COLUMNS: Final = ("step", "state", "level", "rule", "value", "threshold", "cause", "advice")


def alert_tags(alerts: Sequence[Alert]) -> dict[str, str]:
    """Return a tag a rule with how it stands, and the number of alerts raised."""
    latest = {alert.rule: alert for alert in alerts}
    tags = {
        f"{OWN}alert.{rule}": f"{alert.state} at step {alert.step}: {alert.cause}"[:_LONGEST]
        for rule, alert in latest.items()
    }
    return {**tags, f"{OWN}alert.count": str(sum(alert.state == "raised" for alert in alerts))}


def alert_table(alerts: Sequence[Alert]) -> str:
    """Return the alerts as a table of MLflow's."""
    rows = [[getattr(alert, name) for name in _COLUMNS] for alert in alerts]
    return json.dumps({"columns": list(_COLUMNS), "data": rows}, ensure_ascii=False, allow_nan=False)


def listed_tables(tags: Mapping[str, str]) -> str:
    """Return the list of tables with ours in it."""
    try:
        listed = json.loads(tags.get(TABLES) or "[]")
    except ValueError:
        listed = []
    ours = {"path": TABLE, "type": "table"}
    others = [entry for entry in listed if entry != ours] if isinstance(listed, list) else []
    return json.dumps([*others, ours])


def described(note: str, alerts: Sequence[Alert]) -> str:
    """
    Return a description with the alerts in it; whatever else stands in it is left as it is.

    Args:
        note: the description so far.

        alerts: all alerts; the latest are shown, as many as there is room for.
    """
    before, found, rest = note.partition(_BEGIN)
    after = rest.partition(_END)[2] if found else ""
    before, after = before.rstrip("\n"), after.lstrip("\n")
    room = _LONGEST - len(before) - len(after)
    block = _block(alerts, room)
    return "\n\n".join(part for part in (before, block, after) if part) if block else note


def _block(alerts: Sequence[Alert], room: int) -> str:
    raised = [alert for alert in alerts if alert.state == "raised"]
    cleared = {alert.rule: alert.step for alert in alerts if alert.state == "cleared"}
    rows: list[str] = []
    for alert in reversed(raised):
        end = cleared.get(alert.rule, -1)
        until = f", until {end}" if end >= alert.step else ""
        row = f"| {alert.step}{until} | {alert.rule} | {_cell(alert.cause)} | {_cell(alert.advice)} |"
        room -= len(row) + 1
        if room < 400:
            break
        rows.append(row)
    if not rows:
        return ""
    count = "1 alert" if len(raised) == 1 else f"{len(raised)} alerts"
    shown = "" if len(rows) == len(raised) else f" (the latest {len(rows)} are shown)"
    head = [f"**trackperf**: {count}{shown}", "", "| step | rule | cause | advice |", "|---|---|---|---|"]
    return "\n".join([_BEGIN, "", *head, *rows, "", _END])


def _cell(text: str) -> str:
    """Return a text that markdown takes as it is, in a cell of a table; code stays code."""
    line = " ".join(text.split())
    for sign in ("\\", "|", "<", "*", "_"):
        line = "`".join(
            part if at % 2 else part.replace(sign, f"\\{sign}") for at, part in enumerate(line.split("`"))
        )
    return line
