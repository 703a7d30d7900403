"""The TensorBoard adapter: writes a run into an event file, and reads event files back."""

from __future__ import annotations

from trackperf_tensorboard.reader import TensorBoardReader
from trackperf_tensorboard.sink import TensorBoardSink

__all__ = ["TensorBoardReader", "TensorBoardSink"]
