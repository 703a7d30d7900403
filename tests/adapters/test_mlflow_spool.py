"""`trackperf.init(sink="mlflow")` with a server that is killed, and a training that is: nothing is lost."""

from __future__ import annotations

import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import mlflow
import pytest
from mlflow_scripts import command, script
from mlflow_server import MARKS, Server, mlflow_server  # noqa: F401 - a fixture

from trackperf.registry import read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mlflow_scripts import Script

pytestmark = MARKS

EXIT_S = 5.0
"""What a process may take to end when a tracker is away."""

TRAIN = """
    perf = trackperf.init(sink={sinks}, name="{name}", warmup_steps=0, interval_s=0.1)
    for place, _ in enumerate(perf.steps(range(10**9), samples=2)):
        time.sleep(0.02)
        if place % 20 == 10:
            print(place, flush=True)
        if os.path.exists("stop"):
            print("done", flush=True)
            {end}
"""


@pytest.fixture
def server(mlflow_server: Server) -> Iterator[Server]:  # noqa: F811
    """The real server, which runs, and runs again afterwards."""
    yield mlflow_server
    mlflow_server.again()
    mlflow_server.wait()


@pytest.fixture
def train(server: Server, tmp_path: Path) -> Callable[..., Script]:
    """Return a function that starts a training, which goes on until there is a file `stop`."""

    def start(name: str, *others: str, end: str = "break") -> Script:
        body = TRAIN.format(sinks=["jsonl", *others, "mlflow"], name=name, end=end)
        return script(body, tmp_path, **environ(server))

    return start


def environ(server: Server) -> dict[str, str]:
    """Return the settings of a user of the server."""
    return {"MLFLOW_TRACKING_URI": server.url, "MLFLOW_EXPERIMENT_NAME": "spool"}


def stored(server: Server, name: str) -> Any:
    """Return the one run of a name, as MLflow's own client gives it."""
    client = mlflow.MlflowClient(server.url)
    experiment = client.get_experiment_by_name("spool")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
    return run


def steps_of(server: Server, run: Any, key: str = "perf/step_ms") -> list[int]:
    """Return the steps of a series in the order in which they came."""
    return [one.step for one in mlflow.MlflowClient(server.url).get_metric_history(run.info.run_id, key)]


def made(folder: Path, name: str, kind: str = "jsonl") -> dict[str, list[tuple[int, float]]]:
    """Return all that a local sink has of a run."""
    series = read_run(f"{kind}:{folder / 'runs' / name}").series
    return {key: list(zip(one.step.tolist(), one.value.tolist(), strict=True)) for key, one in series.items()}


def everything(server: Server, run: Any, keys: Any) -> dict[str, list[tuple[int, float]]]:
    """Return all that MLflow has of some series."""
    client = mlflow.MlflowClient(server.url)
    rows = {key: client.get_metric_history(run.info.run_id, key) for key in keys}
    return {key: [(one.step, one.value) for one in found] for key, found in rows.items()}


@pytest.mark.timeout(180)
def test_the_server_is_killed_and_comes_back(
    server: Server, train: Callable[..., Script], tmp_path: Path
) -> None:
    """Killed in mid-run and started again seconds later, it has every point, once and in order."""
    training = train("outage")
    for _ in range(2):
        training.line()
    server.kill()
    for _ in range(3):
        training.line()
    server.again()
    server.wait()
    (tmp_path / "stop").touch()
    code, _, err = training.end()
    assert code == 0, err
    assert "sink mlflow is away" in err
    run, local = stored(server, "outage"), made(tmp_path, "outage")
    assert everything(server, run, local) == local
    assert len(local["perf/step_ms"]) > 10
    assert run.info.status == "FINISHED"
    assert list(tmp_path.glob("runs/*/spool*")) == []


@pytest.mark.timeout(180)
def test_the_server_is_gone_at_the_end(server: Server, train: Callable[..., Script], tmp_path: Path) -> None:
    """
    A run that fails while the server is dead ends in time, another that never saw it is terminated: local
    files are whole. `trackperf sync` brings both once the server is back, each with its true status.
    """
    failing = train("failing", end="raise ValueError('own')")
    failing.line()
    failing.line()
    server.kill()
    unseen = train("unseen", "tensorboard")
    unseen.line()
    unseen.line()
    unseen.send(signal.SIGTERM)
    (tmp_path / "stop").touch()
    took_s, ends = {}, {}
    for name, training in (("failing", failing), ("unseen", unseen)):
        while name == "failing" and training.line() != "done":
            pass
        since = time.monotonic()
        ends[name] = training.end()
        took_s[name] = time.monotonic() - since
    assert (ends["failing"][0], ends["unseen"][0]) == (1, -signal.SIGTERM), ends
    assert all("points wait" in err for _, _, err in ends.values()), ends
    assert max(took_s.values()) < EXIT_S + 2.0
    server.again()
    local = {name: made(tmp_path, name) for name in ends}
    drawn = made(tmp_path, "unseen", "tensorboard")
    for key, points in local["unseen"].items():
        assert [step for step, _ in drawn[key]] == [step for step, _ in points]
    server.wait()
    code, out, err = command("sync", folder=tmp_path, **environ(server))
    assert code == 0, out + err
    for name, status in (("failing", "FAILED"), ("unseen", "KILLED")):
        run = stored(server, name)
        assert (run.info.status, run.data.tags["trackperf.status"]) == (status, status.lower())
        assert everything(server, run, local[name]) == local[name]
    assert list(tmp_path.glob("runs/*/spool*")) == []


def test_the_training_is_killed(server: Server, train: Callable[..., Script], tmp_path: Path) -> None:
    """After `kill -9` at any moment, three times, `sync` brings all points but one at most, each once."""
    rng = random.Random(7)
    names = [f"killed-{number}" for number in range(3)]
    trainings = [train(name) for name in names]
    for training in trainings:
        training.line()
        threading.Timer(rng.uniform(0.0, 1.0), training.send, [signal.SIGKILL]).start()
    for training in trainings:
        assert training.end()[0] == -signal.SIGKILL
    code, out, err = command("sync", folder=tmp_path, **environ(server))
    assert code == 0, out + err
    for name in names:
        run, local = stored(server, name), [step for step, _ in made(tmp_path, name)["perf/step_ms"]]
        arrived = steps_of(server, run)
        assert arrived == sorted(set(arrived))
        assert arrived[: len(local) - 1] == local[:-1]
        assert len(local) > 1
        assert run.info.status == "KILLED"
