"""
MLflow's REST interface, one request a call.

MLflow's own client waits for minutes on a server that is away, and its limits are settings of the whole
process. So requests are made one by one through MLflow's `http_request`, which takes limits as arguments and
brings the user's credentials, certificates and headers with it.
"""

from __future__ import annotations

import email.utils
import importlib
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import numpy as np

from trackperf.errors import UnavailableError
from trackperf_mlflow.api import History, Measure, RefusedError, StoredRun
from trackperf_mlflow.uris import scheme_of, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackperf_mlflow.api import Deadlines

__all__ = ["RestApi"]

_ROOT: Final = "/api/2.0/mlflow"
_FILES: Final = "/api/2.0/mlflow-artifacts/artifacts"
_PAGE: Final = 25_000
_RUNS: Final = 1000
_WAIT: Final = frozenset({401, 403, 407, 408, 425, 429})
"""Answers after which a later try may do, among them those about credentials: a person can put them right."""


class RestApi:
    """A tracking server over HTTP."""

    def __init__(self, tracking_uri: str, deadlines: Deadlines) -> None:
        """
        Args:
            tracking_uri: address of the server.

            deadlines: limits of each request.
        """
        self._uri = tracking_uri
        self._place = without_secrets(tracking_uri)
        self._deadlines = deadlines

    def experiment_id(self, name: str, *, create: bool) -> str | None:
        """Return the id of an experiment, made if it may be; None when there is none."""
        for last in (False, True):
            try:
                found = self._get("experiments/get-by-name", {"experiment_name": name})["experiment"]
            except RefusedError as error:
                if error.code != "RESOURCE_DOES_NOT_EXIST" or last:
                    raise
            else:
                if found.get("lifecycle_stage") == "deleted":
                    raise RefusedError(f"the experiment {name!r} is deleted; restore it or name another")
                return str(found["experiment_id"])
            if not create:
                return None
            try:
                return str(self._post("experiments/create", {"name": name})["experiment_id"])
            except RefusedError as error:
                # Another process may have made it in between.
                if error.code != "RESOURCE_ALREADY_EXISTS":
                    raise
        return None

    def get_run(self, run_id: str) -> StoredRun:
        """Return a run."""
        return _stored(self._get("runs/get", {"run_id": run_id})["run"])

    def search(self, experiment_ids: Sequence[str] | None, condition: str) -> Iterator[StoredRun]:
        """Yield the runs of experiments, of all when None, for which a condition holds."""
        ids = list(self._experiments() if experiment_ids is None else experiment_ids)
        token = ""
        while ids:
            asked = {"experiment_ids": ids, "filter": condition, "max_results": _RUNS, "page_token": token}
            answer = self._post("runs/search", asked)
            yield from map(_stored, answer.get("runs", ()))
            token = answer.get("next_page_token", "")
            if not token:
                return

    def create_run(self, experiment_id: str, name: str, start_ms: int, tags: Mapping[str, str]) -> StoredRun:
        """Make a run."""
        told = [{"key": key, "value": value} for key, value in tags.items()]
        asked = {"experiment_id": experiment_id, "run_name": name, "start_time": start_ms, "tags": told}
        return _stored(self._post("runs/create", asked)["run"])

    def update_run(self, run_id: str, status: str, end_ms: int | None) -> None:
        """Set the status of a run, and when it ended."""
        end = {} if end_ms is None else {"end_time": end_ms}
        self._post("runs/update", {"run_id": run_id, "status": status, **end})

    def log_batch(
        self,
        run_id: str,
        measures: Sequence[Measure] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Store values, params and tags; nothing of it when it is refused."""
        body = {
            "run_id": run_id,
            "metrics": [
                {"key": key, "value": value, "timestamp": stamp, "step": step}
                for key, value, stamp, step in measures
            ],
            "params": [{"key": key, "value": value} for key, value in (params or {}).items()],
            "tags": [{"key": key, "value": value} for key, value in (tags or {}).items()],
        }
        self._post("runs/log-batch", body)

    def history(self, run_id: str, key: str) -> History:
        """Return every value of a series."""
        rows: list[Any] = []
        token = ""
        while True:
            asked = {"run_id": run_id, "metric_key": key, "max_results": str(_PAGE), "page_token": token}
            answer = self._get("metrics/get-history", {name: text for name, text in asked.items() if text})
            rows += answer.get("metrics", ())
            token = answer.get("next_page_token", "")
            if not token:
                break
        return History(
            np.array([int(row.get("step", 0)) for row in rows], np.int64),
            np.array([int(row.get("timestamp", 0)) for row in rows], np.int64),
            np.array([float(row.get("value", 0.0)) for row in rows], np.float64),
        )

    def put_file(self, run: StoredRun, path: str, text: str) -> bool:
        """Write a file of a run if the server takes it; a cloud's own client keeps no limit of ours."""
        place = urlsplit(run.artifact_uri)
        if place.scheme != "mlflow-artifacts" or place.netloc:
            return False
        endpoint = f"{_FILES}/{quote(place.path.strip('/'))}/{quote(path)}"
        self._ask("PUT", endpoint, data=text.encode())
        return True

    def _experiments(self) -> Iterator[str]:
        token = ""
        while True:
            answer = self._post("experiments/search", {"max_results": _RUNS, "page_token": token})
            yield from (str(found["experiment_id"]) for found in answer.get("experiments", ()))
            token = answer.get("next_page_token", "")
            if not token:
                return

    def _get(self, endpoint: str, query: Mapping[str, str]) -> Any:
        return self._ask("GET", f"{_ROOT}/{endpoint}", params=query)

    def _post(self, endpoint: str, body: Mapping[str, object]) -> Any:
        return self._ask("POST", f"{_ROOT}/{endpoint}", json=body)

    def _ask(
        self,
        method: str,
        endpoint: str,
        *,
        params: Mapping[str, str] | None = None,
        json: Mapping[str, object] | None = None,
        data: bytes | None = None,
    ) -> Any:
        content = {"params": params, "json": json, "data": data}
        given = {name: value for name, value in content.items() if value is not None}
        try:
            response = _part("rest_utils").http_request(
                self._credentials(), endpoint, method, max_retries=0, raise_on_status=False,
                **self._limits(), **given,
            )  # fmt: skip
        except Exception as error:
            raise UnavailableError(
                f"MLflow at {self._place} did not answer ({_short(without_secrets(str(error)))})"
            ) from error
        return self._answer(response, f"{method} {endpoint.rpartition('/2.0/')[2]}")

    def _answer(self, response: Any, asked: str) -> Any:
        status = int(response.status_code)
        try:
            answer = response.json() if response.content.strip() else {}
        except ValueError:
            answer = None
        if status == 200 and isinstance(answer, dict):
            return answer
        told = answer if isinstance(answer, dict) and "error_code" in answer else None
        text = str(told.get("message", "")) if told else str(response.text)
        message = f"MLflow at {self._place} answered {status} to {asked}: {_short(text)}"
        if status == 413 or (told and status < 500 and status not in _WAIT):
            raise RefusedError(message, code=str(told["error_code"]) if told else "TOO_LARGE")
        raise UnavailableError(message, retry_after_s=_seconds(response.headers.get("Retry-After")))

    def _credentials(self) -> Any:
        if scheme_of(self._uri) == "databricks":
            return _part("databricks_utils").get_databricks_host_creds(self._uri)
        return _part("credentials").get_default_host_creds(self._uri)

    def _limits(self) -> dict[str, Any]:
        # The Databricks SDK takes one number, and tries again by itself for as long as it is let.
        if scheme_of(self._uri) == "databricks":
            return {
                "timeout": self._deadlines.answer_s,
                "retry_timeout_seconds": int(self._deadlines.answer_s),
            }
        return {"timeout": (self._deadlines.connect_s, self._deadlines.answer_s)}


def _part(name: str) -> Any:
    return importlib.import_module(f"mlflow.utils.{name}")


def _stored(run: Mapping[str, Any]) -> StoredRun:
    info, data = run["info"], run.get("data", {})
    tags = {str(tag["key"]): str(tag.get("value", "")) for tag in data.get("tags", ())}
    return StoredRun(
        run_id=str(info["run_id"]),
        experiment_id=str(info.get("experiment_id", "0")),
        name=str(info.get("run_name") or tags.get("mlflow.runName") or info["run_id"]),
        status=str(info.get("status", "RUNNING")),
        deleted=info.get("lifecycle_stage") == "deleted",
        artifact_uri=str(info.get("artifact_uri", "")),
        tags=tags,
        params={str(param["key"]): str(param.get("value", "")) for param in data.get("params", ())},
        keys=[str(metric["key"]) for metric in data.get("metrics", ())],
    )


def _seconds(text: str | None) -> float | None:
    """Return what `Retry-After` says: seconds, or a date."""
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:300]}..."
