"""A run to write, and TensorBoard's own readers to read it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from trackperf.record import Alert, Point, RunInfo, RunSummary, Stat

MakeRun: TypeAlias = Callable[..., RunInfo]
MakePoints: TypeAlias = Callable[..., list[Point]]
MakeAlert: TypeAlias = Callable[..., Alert]
ReadBack: TypeAlias = Callable[[Path, str], list[tuple[int, float]]]

WALL = 1_700_000_000.0


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return a function that describes a run in the test's folder."""

    def make(**changes: Any) -> RunInfo:
        fields: dict[str, Any] = {
            "run_id": "0" * 31 + "1",
            "name": "run",
            "dir": str(tmp_path),
            "started_at": WALL,
        }
        return RunInfo(**(fields | changes))

    return make


@pytest.fixture
def make_points() -> MakePoints:
    """Return a function that makes one point a step, with one value for each of some keys."""

    def make(
        steps: Sequence[int], value: float = 1.0, keys: Sequence[str] = ("perf/step_ms",)
    ) -> list[Point]:
        return [
            Point(step=step, wall_time=WALL + step, values={key: value + at for at, key in enumerate(keys)})
            for step in steps
        ]

    return make


@pytest.fixture
def make_alert() -> MakeAlert:
    """Return a function that makes an alert."""

    def make(**changes: Any) -> Alert:
        fields: dict[str, Any] = {
            "rule": "loader_latency",
            "state": "raised",
            "level": "warning",
            "step": 40,
            "wall_time": WALL + 40,
            "value": 33.25,
            "threshold": 10.0,
            "cause": "A third of a step is spent waiting for data.",
            "advice": "Use num_workers=4.",
        }
        return Alert(**(fields | changes))

    return make


@pytest.fixture
def summary() -> RunSummary:
    """A run's summary."""
    stat = Stat(mean=2.0, p50=1.5, p95=4.0, n=9)
    return RunSummary(
        steps=1000,
        samples=4000,
        metrics={"perf/step_ms": stat, "perf_step/max_ms": stat},
        phases={"warmup": 1.0, "train": 9.0, "eval": 2.0},
        to_goal_s=7.5,
    )


@pytest.fixture
def accumulated() -> ReadBack:
    """Return a function that reads a tag of a folder with TensorBoard's own reader, without sampling."""

    def read(folder: Path, tag: str) -> list[tuple[int, float]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        accumulator.Reload()
        if tag not in accumulator.Tags()["scalars"]:
            return []
        return [(event.step, event.value) for event in accumulator.Scalars(tag)]

    return read
