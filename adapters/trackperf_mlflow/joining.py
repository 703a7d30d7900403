"""Which run of MLflow's a run of trackperf's is written into."""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trackperf.errors import ConfigError
from trackperf_mlflow.api import RefusedError
from trackperf_mlflow.settings import OWN
from trackperf_mlflow.uris import absolute

if TYPE_CHECKING:
    from trackperf.record import RunInfo
    from trackperf_mlflow.api import Api, StoredRun

__all__ = ["Place", "join", "place"]

RUN_ID: Final = f"{OWN}run_id"
"""The tag with trackperf's own id of the run."""

OWNED: Final = "mlflow.trackperf.owned"
"""The tag of a run that trackperf opened, and so closes."""

_PARENT: Final = "mlflow.parentRunId"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run is to be written."""

    tracking_uri: str
    experiment: str | None = None
    experiment_id: str | None = None
    run_id: str | None = None
    """The run to write into; None for one that is still to be found or made."""

    parent_id: str | None = None
    """The run that a new one is made under."""

    active: bool = False
    """Whether it is a run that the user has under way: it is left as it stands at the end."""


def place(
    *,
    tracking_uri: str | None,
    experiment: str | None,
    run_id: str | None,
    nested: bool,
) -> Place:
    """
    Return where to write, as MLflow itself would on this thread.

    Raises:
        ConfigError: a run cannot be named and made under another one at once.
    """
    import mlflow

    if run_id is not None and nested:
        raise ConfigError(
            f"MlflowSink takes run_id= (got {run_id!r}) or nested=True, not both: a nested run is a new one."
        )
    usual = mlflow.get_tracking_uri()
    uri = absolute(tracking_uri or usual)
    if run_id is None and experiment is None and uri == absolute(usual):
        active = mlflow.active_run()
        if active is not None:
            found, where = active.info.run_id, active.info.experiment_id
            if nested:
                return Place(tracking_uri=uri, experiment_id=where, parent_id=found)
            return Place(tracking_uri=uri, experiment_id=where, run_id=found, active=True)
        run_id = os.environ.get("MLFLOW_RUN_ID") or None
    named = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or None
    by_id = None if experiment else os.environ.get("MLFLOW_EXPERIMENT_ID") or None
    return Place(tracking_uri=uri, experiment=named, experiment_id=by_id, run_id=run_id)


def join(api: Api, where: Place, run: RunInfo) -> tuple[StoredRun, bool]:
    """
    Return MLflow's run, and whether trackperf closes it.

    A run that holds another run of trackperf's already is not written into a second time, where their
    curves would be mixed: the new one gets a run of its own under it.
    """
    if where.run_id is not None:
        stored = api.get_run(where.run_id)
        if stored.deleted:
            raise RefusedError(f"the run {stored.run_id} is deleted in MLflow; restore it or name another")
        if stored.tags.get(RUN_ID, run.run_id) == run.run_id:
            return stored, OWNED in stored.tags and not where.active
        return _own(api, run, stored.experiment_id, stored.run_id), True
    experiment_id = where.experiment_id
    if experiment_id is None:
        experiment_id = api.experiment_id(where.experiment, create=True) if where.experiment else "0"
    return _own(api, run, experiment_id or "0", where.parent_id), True


def _own(api: Api, run: RunInfo, experiment_id: str, parent_id: str | None) -> StoredRun:
    """Return the run with trackperf's id, made if it is not there yet."""
    found = next(api.search([experiment_id], f"tags.`{RUN_ID}` = '{run.run_id}'"), None)
    if found is not None:
        return found
    tags = {RUN_ID: run.run_id, OWNED: "1", "mlflow.user": _user(), "mlflow.runName": run.name}
    if sys.argv and sys.argv[0]:
        tags |= {"mlflow.source.name": sys.argv[0], "mlflow.source.type": "LOCAL"}
    if parent_id is not None:
        tags[_PARENT] = parent_id
    return api.create_run(experiment_id, run.name, round(run.started_at * 1000), tags)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"
