"""The MLflow adapter: writes a run into MLflow, as a guest in the user's run if there is one; reads runs."""

from __future__ import annotations

from trackperf_mlflow.reader import MlflowReader
from trackperf_mlflow.sink import MlflowSink

__all__ = ["MlflowReader", "MlflowSink"]
