"""The sink: values, settings and alerts into a run of MLflow's, the user's own if there is one."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from trackperf.errors import UnavailableError
from trackperf.record import Status
from trackperf_mlflow.api import Deadlines, Measure, RefusedError
from trackperf_mlflow.connecting import connect, require
from trackperf_mlflow.joining import OWNED, Place, join, place
from trackperf_mlflow.ledger import Ledger
from trackperf_mlflow.notes import TABLE, TABLES, alert_table, listed_tables
from trackperf_mlflow.sending import Sender
from trackperf_mlflow.settings import OWN, settings, shown_tags
from trackperf_mlflow.tables import make_tables
from trackperf_mlflow.uris import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trackperf.record import Alert, Point, RunInfo, RunSummary
    from trackperf_mlflow.api import StoredRun

__all__ = ["MlflowSink"]

_log: Final = logging.getLogger("trackperf")
_STATUS: Final = {Status.FINISHED: "FINISHED", Status.FAILED: "FAILED", Status.KILLED: "KILLED"}
_TABLE_EVERY_S: Final = 60.0
_joining: Final = threading.Lock()
"""Two runs of one process may find the same run of the user's: the second must see that it is taken."""


class MlflowSink:
    """
    Writes a run into MLflow: into the run that the user has under way, which is left open, or into its own.

    A database that has no tables of MLflow's yet gets them when the sink is built, which takes seconds, once.
    Its calls have limits of their own. The user's calls keep theirs: no setting of the process is touched.
    """

    name = "mlflow"

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        run_id: str | None = None,
        nested: bool = False,
        deadlines: Deadlines | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            tracking_uri: address of server or database; as MLflow has it when not given.

            experiment: name of the experiment of a new run, made if there is none.

            run_id: MLflow's id of a run to write into.

            nested: make a run under the user's instead of writing into it.

            deadlines: limits of each call to a server.

            clock: seconds of a monotonic clock.

        Raises:
            MissingDependencyError: `mlflow` is not installed.

            SinkError: the store is a database and only `mlflow-skinny` is installed.

            ConfigError: `run_id` and `nested` are both given.
        """
        require("the MLflow sink")
        self._where = place(tracking_uri=tracking_uri, experiment=experiment, run_id=run_id, nested=nested)
        require("the MLflow sink", self._where.tracking_uri)
        self._deadlines = deadlines or Deadlines()
        self._clock = clock
        make_tables(self._where.tracking_uri, self._deadlines)
        self._table_at: float | None = None
        self._told: set[str] = set()

    def address(self) -> Mapping[str, str]:
        """Return the store, and the run as far as it is known."""
        where = self._where
        found = {
            "tracking_uri": without_secrets(where.tracking_uri),
            "experiment": where.experiment,
            "experiment_id": where.experiment_id,
            "run_id": where.run_id,
            "parent_id": where.parent_id,
            "active": "yes" if where.active else None,
        }
        return {name: value for name, value in found.items() if value}

    def rejoin(self, address: Mapping[str, str]) -> None:
        """Go on with the run at an address; a password comes from this process's own settings, if any."""
        uri = address["tracking_uri"]
        if without_secrets(self._where.tracking_uri) == uri:
            uri = self._where.tracking_uri
        self._where = Place(
            tracking_uri=uri,
            experiment=address.get("experiment"),
            experiment_id=address.get("experiment_id"),
            run_id=address.get("run_id"),
            parent_id=address.get("parent_id"),
            active=address.get("active") == "yes",
        )

    def open(self, run: RunInfo) -> None:
        """
        Find the run or make it, and describe it.

        Raises:
            UnavailableError: MLflow cannot be reached, or asks to wait.

            RefusedError: it will not take the run.
        """
        require("the MLflow sink", self._where.tracking_uri)
        self._run = run
        self._api = connect(self._where.tracking_uri, self._deadlines)
        with self._alone():
            stored, self._owned = join(self._api, self._where, run)
            self._sender = Sender(self._api, stored.run_id)
            self._sender.tags(shown_tags(run))
        self._where = dataclasses.replace(
            self._where, run_id=stored.run_id, experiment_id=stored.experiment_id, active=not self._owned
        )
        if self._owned and stored.status != "RUNNING":
            self._api.update_run(stored.run_id, "RUNNING", None)
        self._ledger = Ledger(run, stored.tags)
        self._sender.tags(self._ledger.opening_tags(stored))
        self._describe(stored)

    def write(self, points: Sequence[Point]) -> None:
        """
        Store points.

        Raises:
            UnavailableError: MLflow cannot be reached, or asks to wait.

            RefusedError: it does not take the run any more.
        """
        new = self._ledger.new_keys(key for point in points for key in point.values)
        if new:
            self._sender.tags(self._ledger.key_tags(new))
            self._ledger.keep_keys(new)
        self._sender.points(points, self._ledger.session)

    def alert(self, alert: Alert) -> None:
        """
        Store an alert: whole, as tags to search by, and in the run's description.

        Raises:
            UnavailableError: MLflow cannot be reached, or asks to wait.

            RefusedError: it does not take the run any more.
        """
        stored = self._api.get_run(self._run_id)
        self._sender.tags(self._ledger.alerted_tags(alert, stored))
        now = self._clock()
        if self._table_at is None or now - self._table_at >= _TABLE_EVERY_S:
            self._table_at = now
            self._write_table(stored)

    def close(self, summary: RunSummary, status: Status) -> None:
        """
        Store summary and status, and end the run if trackperf opened it.

        Raises:
            UnavailableError: MLflow cannot be reached, or asks to wait.

            RefusedError: it does not take the run any more.
        """
        # The same time whenever it is tried, so that no second try is a second point.
        end_ms = round((self._run.started_at + sum(summary.phases.values())) * 1000)
        columns = _columns(summary, self._run.prefix)
        self._sender.values([Measure(key, value, end_ms, summary.steps) for key, value in columns.items()])
        stored = self._api.get_run(self._run_id)
        self._sender.tags(self._ledger.closing_tags(summary, status, stored))
        if self._ledger.alerts:
            self._write_table(stored)
        if self._owned:
            self._api.update_run(self._run_id, _STATUS[status], self._end_of_run(end_ms, summary))
        if self._sender.dropped:
            _log.warning("trackperf: MLflow did not take %d values, tags or params", self._sender.dropped)

    @property
    def _run_id(self) -> str:
        return self._where.run_id or ""

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not _joining.acquire(timeout=self._deadlines.answer_s):
            raise UnavailableError("another run is still waiting for MLflow")
        try:
            yield
        finally:
            _joining.release()

    def _describe(self, stored: StoredRun) -> None:
        """Store settings that are not there yet; what a resume changed becomes a tag, since params stand."""
        wanted, skipped = settings(self._run, guest=OWNED not in stored.tags)
        if skipped and "settings" not in self._told:
            self._told.add("settings")
            told = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
            _log.warning("trackperf: %d settings are left out in MLflow: %s", len(skipped), told)
        new = {name: value for name, value in wanted.items() if name not in stored.params}
        self._sender.params(new)
        changed = {
            f"{OWN}changed.{name.removeprefix(OWN)}": value
            for name, value in wanted.items()
            if stored.params.get(name, value) != value
        }
        self._sender.tags(changed)

    def _write_table(self, stored: StoredRun) -> None:
        """Write the alerts' table. It is an extra: all that is in it stands in the tags."""
        try:
            if self._api.put_file(stored, TABLE, alert_table(self._ledger.alerts)):
                self._sender.tags({TABLES: listed_tables(stored.tags)})
        except (UnavailableError, RefusedError) as error:
            self._ledger.say_once("the table of alerts", error)

    @staticmethod
    def _end_of_run(end_ms: int, summary: RunSummary) -> int:
        """Return when the run ended: not now, where it is told by another process later."""
        now = round(time.time() * 1000)
        return min(now, end_ms) if summary.phases else now


def _columns(summary: RunSummary, prefix: str) -> dict[str, float]:
    """Return the summary's headline as values to sort and search runs by."""
    before, after = f"{prefix}/", f"{prefix}_summary/"
    columns: dict[str, Any] = {
        after + key.removeprefix(before): stat.p50
        for key, stat in summary.metrics.items()
        if key.startswith(before)
    }
    if summary.phases:
        columns[f"{after}train_s"] = summary.train_s
    if summary.to_goal_s is not None:
        columns[f"{after}to_goal_s"] = summary.to_goal_s
    if summary.to_goal_steps is not None:
        columns[f"{after}to_goal_steps"] = float(summary.to_goal_steps)
    return columns
