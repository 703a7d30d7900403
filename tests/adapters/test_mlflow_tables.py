"""MLflow's tables in a database that has none: whole, or not there."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from mlflow_scripts import ended
from mlflow_server import MARKS, database  # noqa: F401 - a fixture
from trackperf_mlflow.api import Deadlines
from trackperf_mlflow.tables import make_tables
from trackperf_mlflow.uris import is_tracking_database

from trackperf.record import Status
from trackperf.registry import find_runs, read_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = MARKS

LIMITS = Deadlines(connect_s=1.0, answer_s=1.0)


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fill databases with three empty tables instead of MLflow's hundred; gives the addresses of them."""
    seen: list[str] = []

    def fill(engine: Any) -> None:
        seen.append(str(engine.url))
        with engine.begin() as connection:
            for name in ("experiments", "runs", "metrics"):
                connection.execute(sqlalchemy.text(f"CREATE TABLE {name} (x)"))

    monkeypatch.setattr("mlflow.store.db.utils._initialize_tables", fill)
    return seen


def test_a_short_run_in_a_fresh_folder(tmp_path: Path) -> None:
    """A script of a few steps that ends at once has its whole run in `mlflow.db`, and so has the next one."""
    body = """
        import logging
        logging.basicConfig(format="%(message)s", level=logging.INFO)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        perf = trackperf.init(sink="mlflow", name="short", warmup_steps=0)
        for _ in perf.steps(range(3), samples=4):
            pass
    """
    for times in (1, 0):
        code, _, err = ended(body, tmp_path)
        assert (code, err.count("MLflow's tables are made"), err.count("waits")) == (0, times, 0), err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlflow.db", "runs"]
    histories = [read_run(run) for run in find_runs(f"mlflow:{tmp_path / 'mlflow.db'}")]
    assert [history.status for history in histories] == [Status.FINISHED] * 2
    assert [history.series["perf/train_s"].step[-1] for history in histories] == [3, 3]


def test_tables_that_are_there(database: str, tmp_path: Path, filled: list[str]) -> None:  # noqa: F811
    """A database of MLflow's is left as it is, and so is what is no database."""
    before = (tmp_path / "mlflow.db").read_bytes()
    for uri in (database, "http://127.0.0.1:9", str(tmp_path), "sqlite:///:memory:"):
        make_tables(uri, LIMITS)
    assert (tmp_path / "mlflow.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    assert filled == []


def test_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended in the middle, nothing is left in its place."""

    def interrupted(engine: Any) -> None:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE experiments (x)"))
        raise KeyboardInterrupt

    monkeypatch.setattr("mlflow.store.db.utils._initialize_tables", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_tables(f"sqlite:///{tmp_path}/deep/mlflow.db", LIMITS)
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.parametrize("kind", ["none", "empty", "foreign", "driver", "unlinkable"])
def test_kinds_of_files(
    tmp_path: Path,
    filled: list[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where no file is, an empty one, or one of something else, tables are there afterwards; it is said."""
    path = tmp_path / "mlflow.db"
    if kind == "empty":
        path.touch()
    if kind == "foreign":
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE mine (x)")
    if kind == "unlinkable":
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError("no links here")))
    scheme = "sqlite+pysqlite" if kind == "driver" else "sqlite"
    with caplog.at_level(logging.INFO, "trackperf"):
        make_tables(f"{scheme}:///{path}", LIMITS)
    assert is_tracking_database(path)
    assert [one.name for one in tmp_path.iterdir()] == ["mlflow.db"]
    assert caplog.text.count("tables are made in") == (2 if kind == "unlinkable" else 1)
    with contextlib.closing(sqlite3.connect(path)) as made:
        tables = {name for (name,) in made.execute("SELECT name FROM sqlite_master")}
    assert ("mine" in tables) == (kind == "foreign")


def test_another_process_is_faster(
    tmp_path: Path, filled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process has put there in the meantime stands."""
    path, link = tmp_path / "mlflow.db", os.link

    def faster(fresh: Any, place: Any) -> None:
        path.write_bytes(b"the other's")
        link(fresh, place)

    monkeypatch.setattr(os, "link", faster)
    make_tables(f"sqlite:///{path}", LIMITS)
    assert path.read_bytes() == b"the other's"


@pytest.mark.parametrize("uri", ["postgresql://127.0.0.1:9/x", "sqlite:////proc/none/mlflow.db"])
def test_a_database_that_cannot_be_reached(
    uri: str, filled: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It is no error here, and no warning: the run's first call says it, and waits for it."""
    make_tables(uri, LIMITS)
    assert (filled, caplog.text) == ([], "")
