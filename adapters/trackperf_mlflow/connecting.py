"""From a store's address to the way that it is reached."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from trackperf.errors import MissingDependencyError, SinkError
from trackperf_mlflow.rest import RestApi
from trackperf_mlflow.store import StoreApi
from trackperf_mlflow.uris import DATABASES, scheme_of

if TYPE_CHECKING:
    from trackperf_mlflow.api import Api, Deadlines

__all__ = ["connect", "installed", "require"]


def installed(user: str) -> None:
    """
    Make sure that MLflow is there, without importing it: that takes seconds.

    Raises:
        MissingDependencyError: MLflow is not installed.
    """
    if "mlflow" not in sys.modules and importlib.util.find_spec("mlflow") is None:
        raise MissingDependencyError(user=user, package="mlflow", extra="mlflow")


def require(user: str, tracking_uri: str | None = None) -> None:
    """
    Make sure that MLflow is there, with what a tracking store needs.

    Raises:
        MissingDependencyError: MLflow is not installed.

        SinkError: the store is a database, and the part of MLflow that speaks to one is not installed.
    """
    try:
        import mlflow.utils.rest_utils
    except ImportError as error:
        raise MissingDependencyError(user=user, package="mlflow", extra="mlflow") from error
    if tracking_uri is not None and scheme_of(tracking_uri) in DATABASES:
        if importlib.util.find_spec("sqlalchemy") is None:
            raise SinkError(
                f"{user} cannot write to {tracking_uri!r}: a database needs the whole of MLflow. Install it "
                "with: pip install mlflow; or name a server in MLFLOW_TRACKING_URI"
            )
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


def connect(tracking_uri: str, deadlines: Deadlines) -> Api:
    """Return the store at an address; a server is not asked yet."""
    if scheme_of(tracking_uri) in ("http", "https", "databricks"):
        return RestApi(tracking_uri, deadlines)
    return StoreApi(tracking_uri, deadlines)
