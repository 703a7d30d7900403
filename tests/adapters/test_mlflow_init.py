"""`trackperf.init(sink="mlflow")` in real scripts, in all the ways that they end."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import mlflow
import pytest
from mlflow_scripts import ended, script
from mlflow_server import MARKS, database  # noqa: F401 - a fixture

from trackperf.record import Status
from trackperf.registry import read_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [*MARKS, pytest.mark.usefixtures("database")]


def runs() -> list[Any]:
    """Return all runs, as MLflow's own client gives them."""
    return list(mlflow.MlflowClient().search_runs(["0"]))


def test_guests_in_the_users_runs(tmp_path: Path) -> None:
    """
    A script with a run of its own: our points go there, its own points are all there, and it is left open. A
    second thread with a second run of the user's has its own points, not the first one's.
    """
    body = """
        import mlflow
        def train(name, steps):
            with mlflow.start_run(run_name=name) as run:
                perf = trackperf.init(sink="mlflow", name=name, warmup_steps=0, interval_s=0.05)
                for step, _ in enumerate(perf.steps(range(steps), samples=4)):
                    mlflow.log_metric("loss", step * 1.0, step=step)
                    spin(0.01)
                perf.finish()
                assert mlflow.active_run().info.run_id == run.info.run_id
                assert mlflow.get_run(run.info.run_id).info.status == "RUNNING"
                mlflow.log_metric("after", 1.0)
        other = threading.Thread(target=train, args=("other", 12))
        other.start()
        train("main", 8)
        other.join()
    """
    code, _, err = ended(body, tmp_path)
    assert code == 0, err
    found = {run.info.run_name: run for run in runs()}
    assert sorted(found) == ["main", "other"]
    for name, steps in (("main", 8), ("other", 12)):
        assert found[name].info.status == "FINISHED"
        history = read_run(f"mlflow:{found[name].info.run_id}")
        assert (history.name, history.status) == (name, Status.FINISHED)
        assert history.summary is not None
        assert history.summary.steps == steps
        assert history.series["loss"].value.tolist() == [float(step) for step in range(steps)]
        assert history.series["perf/train_s"].step[-1] == steps
        assert "after" in history.series


def test_one_run_after_the_other(tmp_path: Path) -> None:
    """Without a run of the user's each has its own; no thread stays, and nothing is active afterwards."""
    body = """
        import mlflow
        for place in range(3):
            perf = trackperf.init(sink="mlflow", name=f"x{place}", warmup_steps=0)
            for _ in perf.steps(range(5 + place), samples=4):
                pass
            perf.finish()
        assert mlflow.active_run() is None
        print([one.name for one in threading.enumerate() if one.name.startswith("trackperf")])
    """
    code, out, err = ended(body, tmp_path)
    assert (code, out) == (0, "[]\n"), err
    assert sorted((run.info.run_name, run.info.status) for run in runs()) == [
        ("x0", "FINISHED"),
        ("x1", "FINISHED"),
        ("x2", "FINISHED"),
    ]
    assert [read_run(f"mlflow:{run.info.run_id}").summary.steps for run in reversed(runs())] == [5, 6, 7]  # type: ignore[union-attr]


def test_an_exception_ends_the_script(tmp_path: Path) -> None:
    """The user's exception comes out as it is, and the run is failed."""
    body = """
        perf = trackperf.init(sink="mlflow", name="x", warmup_steps=0)
        for place, _ in enumerate(perf.steps(range(20), samples=2)):
            if place == 7:
                raise ValueError("the user's own")
    """
    code, _, err = ended(body, tmp_path)
    assert code == 1
    assert err.strip().endswith("ValueError: the user's own")
    (run,) = runs()
    assert (run.info.status, run.data.tags["trackperf.status"]) == ("FAILED", "failed")


@pytest.mark.skipif(os.name != "posix", reason="no SIGTERM there")
def test_a_signal_ends_the_script(tmp_path: Path) -> None:
    """All steps before the signal are there, the run is killed, and the process dies of the signal."""
    body = """
        perf = trackperf.init(sink="mlflow", name="x", warmup_steps=0, interval_s=0.05)
        for place, _ in enumerate(perf.steps(range(10**9), samples=2)):
            spin(0.01)
            if place == 49:
                print("trained", flush=True)
                signal.sigtimedwait([], 60)
    """
    process = script(body, tmp_path)
    assert process.line() == "trained"
    process.send(signal.SIGTERM)
    code, _, err = process.end()
    assert code == -signal.SIGTERM, err
    (run,) = runs()
    assert run.info.status == "KILLED"
    assert run.info.end_time is not None
    history = read_run(f"mlflow:{run.info.run_id}")
    assert history.summary is not None
    assert history.summary.steps in (49, 50)
    assert history.series["perf/train_s"].step[-1] == history.summary.steps
