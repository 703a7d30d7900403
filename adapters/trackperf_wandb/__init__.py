"""The Weights & Biases adapter: a guest in the user's run, or a run of its own, and both read back."""

from __future__ import annotations

from trackperf_wandb.reader import WandbReader
from trackperf_wandb.sink import WandbSink
from trackperf_wandb.workspace import workspace

__all__ = ["WandbReader", "WandbSink", "workspace"]
