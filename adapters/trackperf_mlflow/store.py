"""A tracking store that MLflow's own client speaks to: a database, a folder, or a plug-in's."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import numpy as np

from trackperf.errors import UnavailableError
from trackperf_mlflow.api import History, Measure, RefusedError, StoredRun
from trackperf_mlflow.uris import scheme_of, sqlite_path, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackperf_mlflow.api import Deadlines

__all__ = ["StoreApi", "look", "with_limits"]

_AWAY: Final = frozenset(
    {"TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED"}
)
_PORTS: Final = {"postgresql": 5432, "mysql": 3306}
_RUNS: Final = 1000


class StoreApi:
    """A tracking store behind `MlflowClient`."""

    def __init__(self, tracking_uri: str, deadlines: Deadlines) -> None:
        """
        Args:
            tracking_uri: address of the store.

            deadlines: limits of each call, where the store has a way to keep them.
        """
        self._uri = tracking_uri
        self._place = without_secrets(tracking_uri)
        self._deadlines = deadlines
        self._made: Any = None

    def experiment_id(self, name: str, *, create: bool) -> str | None:
        """Return the id of an experiment, made if it may be; None when there is none."""
        with self._calling() as client:
            found = client.get_experiment_by_name(name)
            if found is None and not create:
                return None
            if found is None:
                return str(client.create_experiment(name))
        if found.lifecycle_stage == "deleted":
            raise RefusedError(f"the experiment {name!r} is deleted; restore it or name another")
        return str(found.experiment_id)

    def get_run(self, run_id: str) -> StoredRun:
        """Return a run."""
        with self._calling() as client:
            return _stored(client.get_run(run_id))

    def search(self, experiment_ids: Sequence[str] | None, condition: str) -> Iterator[StoredRun]:
        """Yield the runs of experiments, of all when None, for which a condition holds."""
        token = None
        with self._calling() as client:
            ids = (
                [found.experiment_id for found in client.search_experiments()]
                if experiment_ids is None
                else list(experiment_ids)
            )
        while ids:
            with self._calling() as client:
                page = client.search_runs(ids, condition, max_results=_RUNS, page_token=token)
            yield from map(_stored, page)
            token = page.token
            if not token:
                return

    def create_run(self, experiment_id: str, name: str, start_ms: int, tags: Mapping[str, str]) -> StoredRun:
        """Make a run."""
        with self._calling() as client:
            return _stored(
                client.create_run(experiment_id, start_time=start_ms, tags=dict(tags), run_name=name)
            )

    def update_run(self, run_id: str, status: str, end_ms: int | None) -> None:
        """Set the status of a run, and when it ended."""
        with self._calling() as client:
            if end_ms is None:
                client.update_run(run_id, status=status)
            else:
                client.set_terminated(run_id, status, end_ms)

    def log_batch(
        self,
        run_id: str,
        measures: Sequence[Measure] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Store values, params and tags; nothing of it when it is refused."""
        from mlflow.entities import Metric, Param, RunTag

        with self._calling() as client:
            client.log_batch(
                run_id,
                metrics=[Metric(*measure) for measure in measures],
                params=[Param(key, value) for key, value in (params or {}).items()],
                tags=[RunTag(key, value) for key, value in (tags or {}).items()],
                synchronous=True,
            )

    def history(self, run_id: str, key: str) -> History:
        """Return every value of a series."""
        with self._calling() as client:
            rows = client.get_metric_history(run_id, key)
        return History(
            np.array([row.step for row in rows], np.int64),
            np.array([row.timestamp for row in rows], np.int64),
            np.array([row.value for row in rows], np.float64),
        )

    def put_file(self, run: StoredRun, path: str, text: str) -> bool:
        """Write a file of a run if they are on this machine."""
        place = urlsplit(run.artifact_uri)
        if place.scheme not in ("", "file") or place.netloc not in ("", "localhost"):
            return False
        file = Path(unquote(place.path)) / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            fresh = file.with_name(f"{file.name}.part")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(file)
        except OSError as error:
            raise UnavailableError(f"the run's files cannot be written: {error}") from error
        return True

    @contextlib.contextmanager
    def _calling(self) -> Iterator[Any]:
        """Give the client, and tell what comes out of a call with it."""
        from mlflow.exceptions import MlflowException

        try:
            yield self._client()
        except MlflowException as error:
            message = f"MLflow at {self._place}: {' '.join(str(error).split())[:300]}"
            code = str(error.error_code)
            if code in _AWAY:
                raise UnavailableError(message) from error
            raise RefusedError(message, code=code) from error
        except (RefusedError, UnavailableError):
            raise
        except Exception as error:
            # Drivers raise errors of their own where a database cannot be opened.
            raise UnavailableError(
                f"MLflow at {self._place}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            ) from error

    def _client(self) -> Any:
        if self._made is None:
            from mlflow.tracking import MlflowClient

            look(self._uri, self._deadlines)
            self._made = MlflowClient(with_limits(self._uri, self._deadlines))
        return self._made


def look(uri: str, deadlines: Deadlines) -> None:
    """
    Try whether a database is there: MLflow itself tries for most of an hour to open one that is not.

    Raises:
        UnavailableError: it is not.
    """
    path = sqlite_path(uri)
    if path is not None and not path.is_file():
        folder = next(place for place in path.absolute().parents if place.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise UnavailableError(f"MLflow's database {path} cannot be made: see to {folder}")
    scheme, place = scheme_of(uri), urlsplit(uri)
    if scheme in _PORTS and place.hostname:
        try:
            address = (place.hostname, place.port or _PORTS[scheme])
            socket.create_connection(address, deadlines.connect_s).close()
        except OSError as error:
            raise UnavailableError(
                f"the database {without_secrets(uri)} cannot be reached: {error}"
            ) from error


def with_limits(uri: str, deadlines: Deadlines) -> str:
    """Return a database's address with limits of its own, which the user's connections do not have."""
    place = urlsplit(uri)
    limits = {
        "postgresql": {
            "connect_timeout": str(max(2, round(deadlines.connect_s))),
            "options": f"-c statement_timeout={round(deadlines.answer_s * 1000)}",
        },
        "mysql": {"connect_timeout": str(max(2, round(deadlines.connect_s)))},
    }.get(scheme_of(uri))
    if limits is None or not place.hostname:
        return uri
    return urlunsplit(place._replace(query=urlencode(limits | dict(parse_qsl(place.query)))))


def _stored(run: Any) -> StoredRun:
    info, data = run.info, run.data
    return StoredRun(
        run_id=info.run_id,
        experiment_id=str(info.experiment_id),
        name=info.run_name or data.tags.get("mlflow.runName") or info.run_id,
        status=str(info.status),
        deleted=info.lifecycle_stage == "deleted",
        artifact_uri=info.artifact_uri or "",
        tags=dict(data.tags),
        params=dict(data.params),
        keys=list(data.metrics),
    )
