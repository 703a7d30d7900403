"""The reader on a real database: what an address means, and every point."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any

import mlflow
import numpy as np
import pytest
from mlflow_server import MARKS, database  # noqa: F401 - a fixture
from trackperf_mlflow import MlflowReader, MlflowSink

from trackperf.errors import ReadError
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status
from trackperf.registry import find_runs, read_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    MakeRun: TypeAlias = Callable[..., RunInfo]
    MakePoints: TypeAlias = Callable[..., list[Point]]
    MakeAlert: TypeAlias = Callable[..., Alert]

pytestmark = MARKS


def write(run: RunInfo, points: list[Point], **arguments: Any) -> str:
    """Write a run that does not come to its end, and return MLflow's id of it."""
    sink = MlflowSink(**arguments)
    sink.open(run)
    sink.write(points)
    return sink.address()["run_id"]


class TestFind:
    """What is a run of MLflow's, and what is not."""

    def test_runs_and_experiments(self, database: str, make_run: MakeRun) -> None:  # noqa: F811
        """A run is found by its id; an experiment by name or id, its runs in order of name, or by filter."""
        second = write(make_run(name="b", tags={"model": "x"}), [], experiment="digits")
        first = write(make_run(name="a", run_id="b" * 32), [], experiment="digits")
        reader = MlflowReader()
        assert reader.find(first) == [first]
        assert reader.find("digits") == reader.find("mlflow:digits") == reader.find("1") == [first, second]
        assert reader.find("digits?tags.model = 'x'") == [second]
        assert reader.find("other") == []
        assert find_runs("mlflow:digits") == [f"mlflow:{first}", f"mlflow:{second}"]

    def test_a_store_that_is_named(self, database: str, make_run: MakeRun, tmp_path: Path) -> None:  # noqa: F811
        """A database is one by its path or address, and its runs can be read by what is found."""
        run_id = write(make_run(), [], experiment="digits")
        del os.environ["MLFLOW_TRACKING_URI"]
        reader = MlflowReader()
        path = str(tmp_path / "mlflow.db")
        for store in (path, database):
            assert reader.find(store) == reader.find(f"{store}#digits") == [f"{store}#{run_id}"]
            assert reader.find(f"{store}#/experiments/1/runs/{run_id}") == [f"{store}#{run_id}"]
            assert read_run(f"mlflow:{store}").name == "run"

    def test_runs_of_others_are_left_out(self, database: str, make_run: MakeRun) -> None:  # noqa: F811
        """In a list stand runs of trackperf only; another can be read by its id."""
        ours = write(make_run(), [])
        with mlflow.start_run() as run:
            mlflow.log_metric("loss", 1.5, step=3)
        assert MlflowReader().find("0") == [ours]
        history = MlflowReader().read(run.info.run_id)
        assert (history.info, history.status) == (None, Status.FINISHED)
        assert history.series["loss"].value.tolist() == [1.5]

    def test_an_empty_folder_stays_empty(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where MLflow has no database none is made, whatever is asked for."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        reader = MlflowReader()
        for address in ("a" * 32, "runs/x", "mlflow:digits", "sqlite:///mlflow.db", "mlflow.db"):
            assert reader.find(address) == []
            with pytest.raises(ReadError, match="MLFLOW_TRACKING_URI"):
                reader.read(address)
        assert list(tmp_path.iterdir()) == []

    def test_a_foreign_database_is_left_alone(self, tmp_path: Path) -> None:
        """An SQLite file of something else gets no tables of MLflow's."""
        path = tmp_path / "other.db"
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE mine (x)")
        before = path.read_bytes()
        assert MlflowReader().find(str(path)) == MlflowReader().find(f"sqlite:///{path}") == []
        assert path.read_bytes() == before

    def test_files_are_of_other_readers(self, database: str, tmp_path: Path) -> None:  # noqa: F811
        """What lies on the disk is not asked for in MLflow."""
        (tmp_path / "digits").mkdir()
        mlflow.create_experiment(str(tmp_path / "digits"))
        assert MlflowReader().find(str(tmp_path / "digits")) == []
        assert MlflowReader().find(str(tmp_path)) == []

    def test_a_server_that_is_away(self) -> None:
        """It is said, not taken for an empty one."""
        with pytest.raises(ReadError, match="did not answer"):
            MlflowReader().find("http://127.0.0.1:9#digits")


class TestRead:
    """A run as it was written."""

    def test_every_point(self, database: str, make_run: MakeRun, tmp_path: Path) -> None:  # noqa: F811
        """30,000 points are 30,000 points, the same at a second reading."""
        run_id = write(make_run(), [Point(step=1, wall_time=1.0, values={"perf/step_ms": 0.0})])
        rows = [("perf/step_ms", float(i), i * 500, run_id, i, 0) for i in range(30_000)]
        with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
            store.execute("DELETE FROM metrics")
            store.executemany(
                "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?,?,?,?,?,?)",
                rows,
            )
            store.commit()
        for _ in range(2):
            series = MlflowReader().read(run_id).series["perf/step_ms"]
            assert np.array_equal(series.step, np.arange(30_000))
            assert np.array_equal(series.value, np.arange(30_000.0))
            assert np.array_equal(series.wall_time, np.arange(30_000) * 0.5)

    def test_all_that_was_told(
        self,
        database: str,  # noqa: F811
        make_run: MakeRun,
        make_alert: MakeAlert,
        summary: RunSummary,
    ) -> None:
        """Info, alerts, summary and status come back equal; names that came while it ran too."""
        names = {"val/accuracy": "val/Accuracy (%)"}
        run = make_run(config={"lr": 0.1, "deep": {"x": [1, 2]}}, names=names, absent={"perf/x": "why"})
        sink = MlflowSink()
        sink.open(run)
        alerts = (make_alert(cause="ü | \n*"), make_alert(state="cleared", step=90, advice=""))
        for alert in alerts:
            sink.alert(alert)
        names["late"] = "Late!"
        sink.close(summary, Status.KILLED)
        history = MlflowReader().read(sink.address()["run_id"])
        assert (history.info, history.alerts) == (run, alerts)
        assert (history.summary, history.status, history.problems) == (summary, Status.KILLED, ())
        assert history.info is not None
        assert history.info.names["late"] == "Late!"

    def test_a_resume_from_an_older_step(
        self,
        database: str,  # noqa: F811
        make_run: MakeRun,
        make_points: MakePoints,
        make_alert: MakeAlert,
    ) -> None:
        """
        0-149, then 100-199 again in the same run: each step once, the later value stands, and the time of
        what was done twice is told. The user's own series beside it is left as it is.
        """
        keys = ["perf/step_ms", "perf/train_s", "acc"]
        first = MlflowSink()
        first.open(make_run())
        run_id = first.address()["run_id"]
        first.write([_point(step, 1.0, step * 1.0) for step in range(1, 151)])
        first.alert(make_alert(step=90))
        first.alert(make_alert(step=120, state="cleared"))
        client = mlflow.MlflowClient()
        for step in (99, 140):
            client.log_metric(run_id, "loss", step / 100, step=step)
        second = MlflowSink()
        second.open(make_run(resume_step=100, started_at=1_700_001_000.0))
        second.write([_point(step, 2.0, step * 1.0, late=1000.0) for step in range(101, 201)])
        history = MlflowReader().read(run_id)
        assert sorted(history.series) == sorted([*keys, "loss"])
        for key in ("perf/step_ms", "acc"):
            series = history.series[key]
            assert series.step.tolist() == list(range(1, 201))
            assert (series.value[99], series.value[119]) == (1.0, 2.0)
        assert history.series["loss"].step.tolist() == [99, 140]
        assert [alert.step for alert in history.alerts] == [90]
        assert (history.redone_steps, history.redone_s) == (50, 50.0)

    def test_sessions_that_arrive_late(self, database: str, make_run: MakeRun) -> None:  # noqa: F811
        """What an earlier process could only send after a later one is still replaced by it."""
        second = MlflowSink()
        second.open(make_run(resume_step=100, started_at=1_700_001_000.0))
        second.write([_point(step, 2.0, 0.0, late=1000.0) for step in range(101, 201)])
        run_id = write(make_run(), [_point(step, 1.0, 0.0) for step in range(1, 151)])
        history = MlflowReader().read(run_id)
        assert history.series["perf/step_ms"].value.tolist() == [1.0] * 100 + [2.0] * 100

    def test_a_run_under_way(self, database: str, make_run: MakeRun, make_points: MakePoints) -> None:  # noqa: F811
        """It can be read; that it has not ended is no damage."""
        history = MlflowReader().read(write(make_run(), make_points([1, 2])))
        assert (history.status, history.summary, history.problems) == (None, None, ())
        assert history.series["perf/step_ms"].step.tolist() == [1, 2]

    def test_a_run_that_others_ended(self, database: str, make_run: MakeRun) -> None:  # noqa: F811
        """Where trackperf told no end, MLflow's word counts."""
        run_id = write(make_run(), [])
        mlflow.MlflowClient().set_terminated(run_id, "KILLED")
        assert MlflowReader().read(run_id).status is Status.KILLED

    def test_what_is_damaged_is_told(self, database: str, make_run: MakeRun, make_points: MakePoints) -> None:  # noqa: F811
        """A description that somebody changed is a problem; the points are read."""
        run_id = write(make_run(), make_points([1, 2]))
        mlflow.MlflowClient().set_tag(run_id, "mlflow.trackperf.info", "=nonsense")
        history = MlflowReader().read(run_id)
        assert history.info is None
        assert len(history.problems) == 1
        assert history.series["perf/step_ms"].step.tolist() == [1, 2]

    def test_more_than_one(self, database: str, make_run: MakeRun) -> None:  # noqa: F811
        """An address of several runs is refused with their addresses."""
        runs = [write(make_run(run_id=letter * 32), []) for letter in "ab"]
        with pytest.raises(ReadError, match="holds 2 runs") as caught:
            MlflowReader().read("0")
        assert all(run in str(caught.value) for run in runs)


def _point(step: int, value: float, train_s: float, late: float = 0.0) -> Point:
    values = {"perf/step_ms": value, "perf/train_s": train_s, "acc": value}
    return Point(step=step, wall_time=1_700_000_000.0 + late + step, values=values)
