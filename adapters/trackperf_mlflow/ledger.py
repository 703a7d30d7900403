"""What trackperf keeps of a run in the run's own tags, over all the processes that write it."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING, Final

from trackperf.codec import from_json, to_json
from trackperf.record import Alert
from trackperf_mlflow import records
from trackperf_mlflow.notes import NOTE, alert_tags, described
from trackperf_mlflow.settings import OWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trackperf.record import RunInfo, RunSummary, Status
    from trackperf_mlflow.api import StoredRun

__all__ = ["Ledger"]

_log: Final = logging.getLogger("trackperf")


class Ledger:
    """
    Takes over what earlier processes stored of a run, and gives the tags that are to be stored next.

    What cannot be kept or understood is left out, and said once.
    """

    def __init__(self, run: RunInfo, tags: Mapping[str, str]) -> None:
        """
        Args:
            run: the run, as this process knows it.

            tags: the run's tags, as MLflow has them.
        """
        self.session: tuple[str, int] | None = None
        """Key and number that mark the points of a process which took the run over."""
        self._run = run
        self._told: set[str] = set()
        self._own = (f"{run.prefix}/", f"{run.prefix}_")
        self._sessions = json.loads(self._unpacked(records.SESSIONS, tags) or "[]")
        if run.resume_step is not None:
            ours = [run.resume_step, run.started_at]
            if ours not in self._sessions:
                self._sessions.append(ours)
            self.session = (f"{run.prefix}_self/session", self._sessions.index(ours) + 1)
        self._keys: set[str] = set(json.loads(self._unpacked(records.KEYS, tags) or "[]"))
        self.alerts = self._standing(json.loads(self._unpacked(records.ALERTS, tags) or "[]"))
        """All alerts that stand, in the order in which they came."""

    def opening_tags(self, stored: StoredRun) -> dict[str, str]:
        """Return what is stored when a process begins or takes over."""
        tags = self._packed(records.INFO, to_json(self._run))
        if self._sessions:
            tags |= self._packed(records.SESSIONS, json.dumps(self._sessions))
            tags |= self._alert_tags()
        else:
            tags[f"{OWN}alert.count"] = alert_tags(self.alerts)[f"{OWN}alert.count"]
        return {**tags, **self._packed(records.END, ""), **self._note(stored)}

    def new_keys(self, keys: Iterable[str]) -> set[str]:
        """Return those series that could not be told from the user's and are not in the tags yet."""
        return {key for key in keys if not key.startswith(self._own)} - self._keys

    def key_tags(self, new: set[str]) -> dict[str, str]:
        """Return the tags that name all such series, some new ones among them."""
        return self._packed(records.KEYS, json.dumps(sorted(self._keys | new)))

    def keep_keys(self, new: set[str]) -> None:
        """Take notice that series are in the tags."""
        self._keys |= new

    def alerted_tags(self, alert: Alert, stored: StoredRun) -> dict[str, str]:
        """Take an alert, unless it is there already, and return what is stored."""
        if alert not in self.alerts:
            self.alerts.append(alert)
        return {**self._alert_tags(), **self._note(stored)}

    def closing_tags(self, summary: RunSummary, status: Status, stored: StoredRun) -> dict[str, str]:
        """Return what is stored when the run ends."""
        told = f'{{"status":{json.dumps(status.value)},"summary":{to_json(summary)}}}'
        tags = {**self._packed(records.INFO, to_json(self._run)), **self._packed(records.END, told)}
        return {**tags, f"{OWN}status": status.value, **self._note(stored)}

    def say_once(self, what: str, error: Exception) -> None:
        """Say that something could not be kept."""
        if what not in self._told:
            self._told.add(what)
            _log.warning("trackperf: %s could not be kept in MLflow: %s", what, error)

    def _standing(self, texts: Iterable[str]) -> list[Alert]:
        alerts = [from_json(Alert, text) for text in texts]
        resumed, since = self._run.resume_step, self._run.started_at
        if resumed is None:
            return alerts
        # What was said of steps that are done again is void; what this process said itself is not.
        return [one for one in alerts if one.step <= resumed or one.wall_time >= since]

    def _alert_tags(self) -> dict[str, str]:
        texts = [to_json(alert) for alert in self.alerts]
        return {**alert_tags(self.alerts), **self._packed(records.ALERTS, json.dumps(texts))}

    def _note(self, stored: StoredRun) -> dict[str, str]:
        before = stored.tags.get(NOTE, "")
        note = described(before, self.alerts)
        return {} if note == before else {NOTE: note}

    def _packed(self, name: str, text: str) -> dict[str, str]:
        try:
            return records.pack(name, text)
        except ValueError as error:
            self.say_once(name, error)
        if name == records.INFO:
            return records.pack(name, to_json(dataclasses.replace(self._run, config={})))
        return {}

    def _unpacked(self, name: str, tags: Mapping[str, str]) -> str | None:
        try:
            return records.unpack(name, tags)
        except ValueError as error:
            self.say_once(name, error)
            return None
