"""The reader: runs of a tracking store, every point of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackperf.errors import ReadError, SinkError, UnavailableError
from trackperf_mlflow.addresses import Address, parse, run_address
from trackperf_mlflow.api import Deadlines, RefusedError
from trackperf_mlflow.assembly import assemble
from trackperf_mlflow.connecting import connect, installed, require
from trackperf_mlflow.joining import RUN_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trackperf.history import RunHistory
    from trackperf_mlflow.api import Api, StoredRun

__all__ = ["MlflowReader"]


class MlflowReader:
    """
    Reads runs from MLflow: page after page, every point.

    It asks only stores that are there: a folder without a tracking database is left without one.
    """

    name = "mlflow"

    def __init__(self, *, deadlines: Deadlines | None = None) -> None:
        """
        Args:
            deadlines: limits of each call to a server.

        Raises:
            MissingDependencyError: `mlflow` is not installed.
        """
        installed("the MLflow reader")
        self._deadlines = deadlines or Deadlines(answer_s=60.0)

    def find(self, address: str) -> Sequence[str]:
        """
        Return the addresses of the runs that an address means, in order of name.

        Of a store or an experiment, these are the runs that trackperf wrote.

        Args:
            address: a run's id, an experiment's name or id, a database or a server, or one of the first two
                behind a store and `#`; all with or without `mlflow:` before it.

        Raises:
            ReadError: the store cannot be asked.
        """
        place = parse(address)
        if place is None:
            return []
        try:
            found = self._runs(self._connect(place), place)
        except (UnavailableError, RefusedError) as error:
            raise ReadError(f"MLflow cannot be asked for {address!r}: {error}") from error
        runs = sorted(found, key=lambda run: (run.name, run.run_id))
        return [run_address(place.store, run.run_id) for run in runs]

    def read(self, address: str) -> RunHistory:
        """
        Read a run.

        Args:
            address: as for `find`; it must mean one run.

        Raises:
            ReadError: there is no run, more than one, or it cannot be read.
        """
        place = parse(address)
        if place is None:
            raise ReadError(
                f"{address!r} is nothing that MLflow has here. Give a run's id or an experiment's name, and "
                "name the store in MLFLOW_TRACKING_URI or before a '#': sqlite:///mlflow.db#RUN_ID"
            )
        try:
            api = self._connect(place)
            runs = list(self._runs(api, place))
            if len(runs) != 1:
                raise ReadError(_not_one(address, place, runs))
            columns = {key: api.history(runs[0].run_id, key) for key in runs[0].keys}
        except (UnavailableError, RefusedError) as error:
            raise ReadError(f"MLflow cannot be read at {address!r}: {error}") from error
        return assemble(runs[0], columns, address)

    def _connect(self, place: Address) -> Api:
        try:
            require("the MLflow reader", place.tracking_uri)
        except SinkError as error:
            raise ReadError(str(error)) from error
        return connect(place.tracking_uri, self._deadlines)

    def _runs(self, api: Api, place: Address) -> Iterable[StoredRun]:
        if place.run_id is not None:
            run = _run(api, place.run_id)
            return [] if run is None or run.deleted else [run]
        ids = None
        if place.experiment is not None:
            found = api.experiment_id(place.experiment, create=False)
            if found is None and not place.experiment.isdecimal():
                return []
            ids = [found or place.experiment]
        return [run for run in api.search(ids, place.condition) if RUN_ID in run.tags]


def _run(api: Api, run_id: str) -> StoredRun | None:
    try:
        return api.get_run(run_id)
    except RefusedError as error:
        if error.code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _not_one(address: str, place: Address, runs: Sequence[StoredRun]) -> str:
    if not runs:
        return f"MLflow has no run at {address!r}; list what it has with: trackperf runs mlflow:EXPERIMENT"
    first = ", ".join(run_address(place.store, run.run_id) for run in runs[:10])
    return f"{address!r} holds {len(runs)} runs; name one: {first}"
