"""A workspace in W&B with the five charts, by W&B's own package for that."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from trackperf.errors import TrackperfError
from trackperf_wandb.rows import STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["workspace"]

_CHARTS: Final[Sequence[tuple[str, tuple[str, ...]]]] = (
    ("Throughput (samples/s)", ("samples_per_s",)),
    ("Training time (s)", ("train_s",)),
    ("GPU utilisation (%)", ("gpu_util_pct",)),
    ("Memory bandwidth (%)", ("mem_bw_pct", "mem_busy_pct")),
    ("Waiting for data (%)", ("data_pct",)),
)


def workspace(*, entity: str, project: str, name: str = "Training performance", prefix: str = "perf") -> Any:
    """
    Return a workspace with the five headline charts over our steps; its `save()` puts it on the server.

    Args:
        entity: user or team.

        project: project of the runs.

        name: name of the workspace.

        prefix: what the keys begin with.

    Raises:
        TrackperfError: `wandb-workspaces` is not installed.
    """
    try:
        reports = importlib.import_module("wandb_workspaces.reports.v2")
        workspaces = importlib.import_module("wandb_workspaces.workspaces")
    except ImportError as error:
        raise TrackperfError(
            "trackperf_wandb.workspace needs the package 'wandb-workspaces', which is not installed. "
            "Install it with: pip install wandb-workspaces"
        ) from error
    panels = [
        reports.LinePlot(title=title, x=STEP, y=[f"{prefix}/{key}" for key in keys])
        for title, keys in _CHARTS
    ]
    section = workspaces.Section(name=prefix, panels=panels, is_open=True)
    return workspaces.Workspace(entity=entity, project=project, name=name, sections=[section])
