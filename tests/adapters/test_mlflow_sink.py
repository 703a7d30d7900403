"""The sink on a real database: what is stored, what is stored once, and what stays the user's."""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import pytest
import sqlalchemy
from mlflow_server import MARKS, contract, database  # noqa: F401 - a fixture
from trackperf_mlflow import MlflowReader, MlflowSink
from trackperf_mlflow.api import RefusedError

from trackperf.errors import ConfigError, MissingDependencyError, UnavailableError
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status
from trackperf.sink import Remote
from trackperf.testing import check_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    MakeRun: TypeAlias = Callable[..., RunInfo]
    MakePoints: TypeAlias = Callable[..., list[Point]]
    MakeAlert: TypeAlias = Callable[..., Alert]

pytestmark = [*MARKS, pytest.mark.usefixtures("database")]

RUN = "a" * 32


def opened(run: RunInfo, **arguments: Any) -> MlflowSink:
    """Return a sink that has the run."""
    sink = MlflowSink(**arguments)
    sink.open(run)
    return sink


def stored(sink: MlflowSink) -> Any:
    """Return the run as MLflow's own client gives it."""
    return mlflow.MlflowClient().get_run(sink.address()["run_id"])


def history(sink: MlflowSink, key: str) -> list[tuple[int, float]]:
    """Return a series as MLflow's own client gives it."""
    found = mlflow.MlflowClient().get_metric_history(sink.address()["run_id"], key)
    return [(one.step, one.value) for one in found]


def active_id() -> str | None:
    """Return the id of the run that is under way on this thread."""
    active = mlflow.active_run()
    return active.info.run_id if active is not None else None


@pytest.fixture
def users_run() -> Iterator[Any]:
    """The user's own run, under way on this thread."""
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", 0.5, step=3)
        yield run


class TestBuilding:
    """What happens on the thread that calls `init`."""

    def test_it_is_a_sink_that_can_be_away(self) -> None:
        """It has what a spool asks for, and its address names the store."""
        sink = MlflowSink()
        assert isinstance(sink, Remote)
        assert (sink.name, sink.address()["tracking_uri"]) == ("mlflow", mlflow.get_tracking_uri())

    def test_a_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Construction fails with the line that installs MLflow."""
        monkeypatch.setitem(sys.modules, "mlflow.utils.rest_utils", None)
        with pytest.raises(MissingDependencyError, match=r"mlflow.*pip install \"trackperf\[mlflow\]\""):
            MlflowSink()

    def test_a_run_that_is_named_is_not_nested(self) -> None:
        """Both at once cannot be done."""
        with pytest.raises(ConfigError, match="not both"):
            MlflowSink(run_id=RUN, nested=True)

    def test_no_secret_is_in_the_address(self) -> None:
        """User and password do not get into the spool; they come from the later process's own settings."""
        sink = MlflowSink(tracking_uri="http://me:secret@127.0.0.1:9/x?token=secret")
        assert sink.address() == {"tracking_uri": "http://127.0.0.1:9/x"}
        later = MlflowSink(tracking_uri="http://me:secret@127.0.0.1:9/x?token=secret")
        later.rejoin({**sink.address(), "run_id": RUN})
        assert later._where.tracking_uri == "http://me:secret@127.0.0.1:9/x?token=secret"
        assert later.address() == {"tracking_uri": "http://127.0.0.1:9/x", "run_id": RUN}


def test_it_keeps_the_contract_of_sinks(database: str) -> None:  # noqa: F811 - the fixture
    """It does what trackperf counts on, and what it wrote is read back."""
    factory, read = contract(database)
    check_sink(factory, read=read)


class TestWhatIsStored:
    """A run of trackperf's own."""

    def test_values_settings_and_tags(self, make_run: MakeRun, make_points: MakePoints) -> None:
        """Values have our steps and times; settings are params, tags tags; the tag finds the run again."""
        run = make_run(
            config={"lr": 0.1, "opt": {"name": "adam", "eps": 1e-8}, "bad": math.nan},
            tags={"model": "resnet50", "a@b": "c"},
            environment={"gpu": "H200", "cpus": 8},
            loader={"num_workers": 4},
        )
        sink = opened(run)
        sink.write(make_points([1, 2], keys=["perf/step_ms", "val/accuracy"]))
        found = stored(sink)
        assert found.info.run_name == "run"
        assert found.info.status == "RUNNING"
        assert found.data.params == {
            "lr": "0.1",
            "opt.name": "adam",
            "opt.eps": "1e-08",
            "trackperf.env.gpu": "H200",
            "trackperf.env.cpus": "8",
            "trackperf.env.world_size": "1",
            "trackperf.loader.num_workers": "4",
        }
        shown = {name: text for name, text in found.data.tags.items() if not name.startswith("mlflow.")}
        assert shown.pop("trackperf.run_id") == run.run_id
        assert shown.pop("trackperf.alert.count") == "0"
        assert shown.pop("model") == "resnet50"
        assert list(shown.values()) == ["c"]
        points = mlflow.MlflowClient().get_metric_history(found.info.run_id, "val/accuracy")
        assert [(one.step, one.timestamp, one.value) for one in points] == [
            (1, 1_700_000_001_000, 2.0),
            (2, 1_700_000_002_000, 2.0),
        ]

    @pytest.mark.parametrize(
        ("status", "told"),
        [(Status.FINISHED, "FINISHED"), (Status.FAILED, "FAILED"), (Status.KILLED, "KILLED")],
    )
    def test_the_end(self, make_run: MakeRun, summary: RunSummary, status: Status, told: str) -> None:
        """The run has the true status, and its headline as values to sort and search by."""
        sink = opened(make_run())
        sink.close(summary, status)
        found = stored(sink)
        assert (found.info.status, found.info.end_time) == (told, 1_700_000_012_000)
        assert found.data.metrics == {
            "perf_summary/step_ms": 1.5,
            "perf_summary/train_s": 10.0,
            "perf_summary/to_goal_s": 7.5,
        }
        condition = f"metrics.`perf_summary/step_ms` < 2 and tags.`trackperf.status` = '{status.value}'"
        assert [one.info.run_id for one in mlflow.MlflowClient().search_runs(["0"], condition)] == [
            found.info.run_id
        ]

    def test_a_second_time_stores_nothing_twice(
        self, make_run: MakeRun, make_points: MakePoints, make_alert: MakeAlert, summary: RunSummary
    ) -> None:
        """Every call again, also by a later process that has but the address, leaves all as it was."""
        run, sink = make_run(resume_step=0), opened(make_run(resume_step=0))
        for again in (sink, MlflowSink()):
            again.rejoin(sink.address())
            for _ in range(2):
                again.open(run)
                again.write(make_points([1, 2, 3]))
                again.alert(make_alert())
                again.close(summary, Status.KILLED)
        assert history(sink, "perf/step_ms") == [(1, 1.0), (2, 1.0), (3, 1.0)]
        assert history(sink, "perf_self/session") == [(1, 1.0), (2, 1.0), (3, 1.0)]
        assert history(sink, "perf_summary/step_ms") == [(1000, 1.5)]
        assert len(MlflowReader().read(sink.address()["run_id"]).alerts) == 1
        assert len(mlflow.MlflowClient().search_runs(["0"])) == 1

    def test_a_thousand_values_a_point(self, make_run: MakeRun) -> None:
        """More values than MLflow takes at once are all there."""
        sink = opened(make_run())
        values = {f"perf_x/{at}": float(at) for at in range(1500)}
        sink.write([Point(step=1, wall_time=1.0, values=values)])
        assert stored(sink).data.metrics == values

    def test_a_bad_name_costs_itself(
        self,
        make_run: MakeRun,
        make_points: MakePoints,
        caplog: pytest.LogCaptureFixture,
        summary: RunSummary,
    ) -> None:
        """What MLflow refuses is left out, said once and counted; everything beside it is stored."""
        sink = opened(make_run())
        keys = ["perf/step_ms", "val@100", "perf/data_pct", "a//b"]
        for steps in (range(1, 11), range(11, 21)):
            sink.write(make_points(steps, keys=keys))
        assert sorted(stored(sink).data.metrics) == ["perf/data_pct", "perf/step_ms"]
        assert len(history(sink, "perf/data_pct")) == 20
        assert caplog.text.count("'val@100'") == caplog.text.count("'a//b'") == 1
        sink.close(summary, Status.FINISHED)
        assert "did not take 40 values" in caplog.text

    def test_a_very_long_description_is_kept_whole(self, make_run: MakeRun) -> None:
        """Settings far longer than a tag come back as they were; the params are cut."""
        config = {"text": "ü" * 50_000, **{f"k{at}": f"value {at}" for at in range(700)}}
        run = make_run(config=config)
        sink = opened(run)
        assert MlflowReader().read(sink.address()["run_id"]).info == run
        assert len(stored(sink).data.params["text"]) == 500


class TestAlerts:
    """Alerts, where MLflow knows none."""

    def test_tags_table_and_description(
        self, make_run: MakeRun, make_alert: MakeAlert, tmp_path: Path, summary: RunSummary
    ) -> None:
        """An alert is found by tags, told in the description, and a row of a table among the run's files."""
        sink = opened(make_run())
        sink.alert(make_alert(cause="Half | of <b>it</b>."))
        sink.alert(make_alert(state="cleared", step=90, advice=""))
        sink.close(summary, Status.FINISHED)
        found = stored(sink)
        assert found.data.tags["trackperf.alert.count"] == "1"
        assert found.data.tags["trackperf.alert.loader_latency"].startswith("cleared at step 90: A third")
        assert (
            "| 40, until 90 | loader_latency | Half \\| of \\<b>it" in found.data.tags["mlflow.note.content"]
        )
        table = mlflow.load_table("trackperf/alerts.json", run_ids=[found.info.run_id])
        assert table[["step", "state", "value"]].values.tolist() == [
            [40, "raised", 33.25],
            [90, "cleared", 33.25],
        ]

    def test_the_users_description_stays(
        self, make_run: MakeRun, make_alert: MakeAlert, users_run: Any
    ) -> None:
        """Text of the user's is kept, before and after ours, also what they write in between."""
        client, run_id = mlflow.MlflowClient(), users_run.info.run_id
        client.set_tag(run_id, "mlflow.note.content", "# My run")
        sink = opened(make_run())
        sink.alert(make_alert(rule="first"))
        note = client.get_run(run_id).data.tags["mlflow.note.content"]
        assert note.startswith("# My run\n\n")
        client.set_tag(run_id, "mlflow.note.content", f"{note}\n\nMy last words.")
        sink.alert(make_alert(rule="second"))
        note = client.get_run(run_id).data.tags["mlflow.note.content"]
        assert (note.count("# My run"), note.count("My last words."), note.count("trackperf**")) == (1, 1, 1)
        assert "| first |" in note
        assert "| second |" in note

    def test_the_table_is_written_once_a_minute(self, make_run: MakeRun, make_alert: MakeAlert) -> None:
        """However often alerts come, the file is written at most once a minute."""
        now = [0.0]
        sink = opened(make_run(), clock=lambda: now[0])
        rows = []
        for at in range(4):
            now[0] = at * 25.0
            sink.alert(make_alert(step=at))
            path = Path(stored(sink).info.artifact_uri.removeprefix("file://")) / "trackperf/alerts.json"
            rows.append(len(json.loads(path.read_text())["data"]))
        assert rows == [1, 1, 1, 4]


class TestGuest:
    """Inside a run that the user has under way."""

    def test_it_is_left_open(
        self, make_run: MakeRun, make_points: MakePoints, summary: RunSummary, users_run: Any
    ) -> None:
        """Values go into the user's run; it stays active, and its own are untouched."""
        sink = opened(make_run(name="ours"))
        sink.write(make_points([1]))
        mlflow.log_metric("loss", 0.4, step=4)
        sink.close(summary, Status.FAILED)
        found = stored(sink)
        assert found.info.run_id == users_run.info.run_id == active_id()
        assert (found.info.status, found.info.run_name) == ("RUNNING", users_run.info.run_name)
        assert history(sink, "loss") == [(3, 0.5), (4, 0.4)]
        assert MlflowReader().read(found.info.run_id).status is Status.FAILED
        assert len(mlflow.MlflowClient().search_runs(["0"])) == 1

    def test_names_stay_free_for_the_user(self, make_run: MakeRun, users_run: Any) -> None:
        """A param of the same name can be logged by the user afterwards, with another text."""
        sink = opened(make_run(config={"lr": 0.1}, loader={"batch_size": 8}))
        mlflow.log_params({"lr": "1e-1", "batch_size": 16})
        params = stored(sink).data.params
        assert (params["lr"], params["trackperf.config.lr"]) == ("1e-1", "0.1")

    def test_a_second_run_gets_its_own(
        self, make_run: MakeRun, make_points: MakePoints, summary: RunSummary, users_run: Any
    ) -> None:
        """Two runs of trackperf in one run of the user's do not mix: the second is nested, and closed."""
        first, second = opened(make_run()), opened(make_run(run_id="b" * 32, name="second"))
        first.write(make_points([1], 1.0))
        second.write(make_points([1], 2.0))
        second.close(summary, Status.FINISHED)
        found = stored(second)
        assert found.data.tags["mlflow.parentRunId"] == users_run.info.run_id
        assert (found.info.run_name, found.info.status) == ("second", "FINISHED")
        assert (history(first, "perf/step_ms"), history(second, "perf/step_ms")) == ([(1, 1.0)], [(1, 2.0)])

    def test_nested(self, make_run: MakeRun, summary: RunSummary, users_run: Any) -> None:
        """Asked for, a run of trackperf's own is made under the user's, and closed."""
        sink = opened(make_run(), nested=True)
        sink.close(summary, Status.FINISHED)
        found = stored(sink)
        assert found.data.tags["mlflow.parentRunId"] == users_run.info.run_id
        assert found.info.status == "FINISHED"
        assert active_id() == users_run.info.run_id


class TestGoingOn:
    """A run that another process takes over."""

    def test_the_same_run(self, make_run: MakeRun, make_points: MakePoints, summary: RunSummary) -> None:
        """The same id of trackperf's goes on in the same run of MLflow's, which is open again."""
        first = opened(make_run())
        first.write(make_points([1, 2]))
        first.close(summary, Status.KILLED)
        second = opened(make_run(resume_step=2))
        assert second.address()["run_id"] == first.address()["run_id"]
        assert stored(second).info.status == "RUNNING"
        assert MlflowReader().read(second.address()["run_id"]).status is None
        second.close(summary, Status.FINISHED)
        assert stored(second).info.status == "FINISHED"

    def test_changed_settings(self, make_run: MakeRun, caplog: pytest.LogCaptureFixture) -> None:
        """Params stand once and for all: a setting that is new is added, a changed one becomes a tag."""
        opened(make_run(loader={"num_workers": 0}))
        run = make_run(resume_step=2, loader={"num_workers": 8, "pin_memory": True})
        sink = opened(run)
        data = stored(sink).data
        assert data.params["trackperf.loader.num_workers"] == "0"
        assert data.params["trackperf.loader.pin_memory"] == "True"
        assert data.tags["trackperf.changed.loader.num_workers"] == "8"
        assert MlflowReader().read(sink.address()["run_id"]).info == run
        assert caplog.text == ""

    def test_a_param_that_comes_in_between(
        self, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A conflict that could not be foreseen costs the one param."""
        first = opened(make_run())
        run_id = first.address()["run_id"]
        seen = first._api.get_run(run_id)
        mlflow.MlflowClient().log_param(run_id, "lr", "0.2")
        first._run = make_run(config={"lr": 0.1, "steps": 5})
        first._describe(seen)
        assert stored(first).data.params["steps"] == "5"
        assert stored(first).data.params["lr"] == "0.2"
        assert "does not take the param 'lr'" in caplog.text


class TestTrouble:
    """What the store says no to, or does not say."""

    @pytest.mark.parametrize("wrong", ["deleted", "unknown"])
    def test_a_run_that_is_not_there(self, make_run: MakeRun, wrong: str) -> None:
        """A run that was deleted or never was is refused at once, for good."""
        client, run_id = mlflow.MlflowClient(), RUN
        if wrong == "deleted":
            run_id = client.create_run("0").info.run_id
            client.delete_run(run_id)
        with pytest.raises(RefusedError):
            MlflowSink(run_id=run_id).open(make_run())

    def test_a_run_that_is_deleted_under_way(self, make_run: MakeRun, make_points: MakePoints) -> None:
        """It is the run that is refused, not the names of its values."""
        sink = opened(make_run())
        mlflow.MlflowClient().delete_run(sink.address()["run_id"])
        with pytest.raises(RefusedError):
            sink.write(make_points([1]))
        assert sink._sender._bad == set()

    def test_a_locked_database(
        self,
        make_run: MakeRun,
        make_points: MakePoints,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A lock of another process makes it away for a while; afterwards all is taken, once."""
        sink = opened(make_run())
        # MLflow waits 20 s for a lock, and has no setting for it.
        text = sqlalchemy.sql.text
        monkeypatch.setattr("mlflow.store.db.utils.sql.text", lambda sql: text(sql.replace("20000", "100")))
        other = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UnavailableError, match="locked"):
            sink.write(make_points([1]))
        other.execute("ROLLBACK")
        other.close()
        sink.write(make_points([1]))
        assert history(sink, "perf/step_ms") == [(1, 1.0)]

    def test_no_place_for_a_database(self, make_run: MakeRun, tmp_path: Path) -> None:
        """A database that cannot be made is away, at once, with its place in the message."""
        (tmp_path / "file").write_text("")
        sink = MlflowSink(tracking_uri=f"sqlite:///{tmp_path}/file/mlflow.db")
        with pytest.raises(UnavailableError, match=r"file/mlflow\.db cannot be made"):
            sink.open(make_run())
