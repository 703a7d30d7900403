"""Listings: one honest row a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trackperf import registry
from trackperf.errors import ReadError
from trackperf.history import RunHistory, Series
from trackperf.listing import RunRow, row, runs
from trackperf.record import Alert, RunInfo, RunSummary, Stat, Status

if TYPE_CHECKING:
    import pytest


def alert(state: str) -> Alert:
    """Return an alert that was raised or cleared."""
    return Alert(
        rule="loader_latency",
        state="raised" if state == "raised" else "cleared",
        level="warning",
        step=10,
        wall_time=1e9,
        value=30.0,
        threshold=10.0,
        cause="waits",
    )


def info(name: str, started_at: float = 1e9) -> RunInfo:
    """Return what a run is."""
    return RunInfo(run_id="0" * 32, name=name, dir="runs", started_at=started_at)


def line(values: list[float], start: float = 1e9) -> Series:
    """Return a series of these values, a second apart."""
    count = len(values)
    return Series(
        step=np.arange(1, count + 1, dtype=np.int64),
        wall_time=start + np.arange(count, dtype=np.float64),
        value=np.asarray(values, dtype=np.float64),
    )


def test_finished_run() -> None:
    """A finished run's row comes from its summary; raised alerts are counted, cleared ones are not."""
    stat = Stat(mean=100.0, p50=101.0, p95=110.0, n=50)
    history = RunHistory(
        name="a",
        source="runs/a",
        series={},
        alerts=(alert("raised"), alert("cleared"), alert("raised")),
        info=info("a"),
        status=Status.FINISHED,
        redone_s=12.0,
        summary=RunSummary(
            steps=1000,
            samples=32_000,
            metrics={"perf/samples_per_s": stat, "perf/data_pct": Stat(mean=0.0, p50=0.0, p95=0.0, n=50)},
            phases={"warmup": 2.0, "train": 98.0, "eval": 5.0},
            to_goal_s=80.0,
        ),
    )
    assert row(history) == RunRow(
        name="a",
        source="runs/a",
        status="finished",
        started_at=1e9,
        steps=1000,
        samples_per_s=101.0,
        train_s=100.0,
        redone_s=12.0,
        to_goal_s=80.0,
        data_pct=0.0,
        alerts=2,
    )


def test_unfinished_and_damaged_run() -> None:
    """Without a summary the points speak; the status says unfinished and damaged; absent stays None."""
    series = {
        "perf/step_ms": line([10.0, 12.0, 11.0], start=9e8),
        "perf/train_s": line([1.0, 2.0, 3.0]),
        "val/accuracy": line([0.5] * 9),
    }
    found = row(RunHistory(name="b", source="b", series=series, info=info("b"), problems=("cut",)))
    assert (found.status, found.steps, found.step_ms, found.train_s) == ("unfinished, damaged", 3, 11.0, 3.0)
    assert (found.samples_per_s, found.gpu_util_pct, found.alerts) == (None, None, 0)
    assert found.started_at == 9e8
    assert found.problems == ("cut",)


def test_empty_run() -> None:
    """A run with nothing in it has a row, and nothing in that."""
    assert row(RunHistory(name="c", source="c", series={})) == RunRow(
        name="c", source="c", status="unfinished", alerts=0
    )


def test_killed_run_says_so() -> None:
    """The way it ended is the status."""
    history = RunHistory(
        name="d", source="d", series={}, status=Status.KILLED, summary=RunSummary(steps=3, samples=None)
    )
    assert row(history).status == "killed"


def test_runs_in_order_with_the_unreadable_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come in order of their beginning; a run that cannot be read has a row and stops nothing."""

    def read(address: str) -> RunHistory:
        if address == "bad":
            raise ReadError("bad is no run")
        return RunHistory(
            name=address, source=address, series={}, info=info(address, {"x": 2e9}.get(address, 1e9))
        )

    monkeypatch.setattr(registry, "find_runs", lambda address: ["bad", "x", "y"])
    monkeypatch.setattr(registry, "read_run", read)
    rows = runs("runs")
    assert [(one.name, one.status) for one in rows] == [
        ("y", "unfinished"),
        ("x", "unfinished"),
        ("bad", "unreadable"),
    ]
    assert rows[-1].problems == ("bad is no run",)
