"""What a person sees: the real TensorBoard, with its default loader, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from trackperf_tensorboard import TensorBoardSink

from trackperf.record import Alert, Point, RunInfo, RunSummary, Stat, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

TAGS = ("perf/step_ms", "perf/data_pct")
DEADLINE_S = 60.0


def _run(folder: Path, name: str, **changes: Any) -> RunInfo:
    fields: dict[str, Any] = {"run_id": "1" * 32, "name": name, "dir": str(folder), "started_at": 1.0}
    return RunInfo(**(fields | changes))


def _points(steps: Iterable[int], value: float) -> list[Point]:
    return [Point(step=step, wall_time=step * 2.0, values=dict.fromkeys(TAGS, value)) for step in steps]


def _alert(step: int, cause: str) -> Alert:
    return Alert(
        rule="loader_latency", state="raised", level="warning", step=step, wall_time=1.0,
        value=33.0, threshold=10.0, cause=cause, advice="Use num_workers=4.",
    )  # fmt: skip


def _write(folder: Path) -> None:
    """Write a run that was killed at 150 and resumed at 100, and one beside it with other settings."""
    first = TensorBoardSink()
    first.open(_run(folder, "resumed", config={"lr": 0.1}))
    first.write(_points(range(1, 151), 1.0))
    first.alert(_alert(90, "cause number one"))
    first.alert(_alert(120, "cause undone"))
    second = TensorBoardSink()
    second.open(_run(folder, "resumed", config={"lr": 0.1}, resume_step=100))
    second.write(_points(range(101, 201), 2.0))
    second.alert(_alert(130, "cause number two"))
    second.alert(_alert(130, "cause number three"))
    stat = Stat(mean=2.0, p50=2.0, p95=2.0, n=9)
    second.close(RunSummary(steps=200, samples=None, metrics={"perf/step_ms": stat}), Status.FINISHED)
    other = TensorBoardSink()
    other.open(_run(folder, "other", run_id="2" * 32, config={"bs": 8}))
    other.write(_points([1], 1.0))


def _ask(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.closing(opener.open(request, timeout=10)) as answer:
        return json.loads(answer.read())


def _ready(url: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return "perf_summary/step_ms" in _ask(f"{url}/data/plugin/scalars/tags")["resumed"]
    return False


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Give a function that asks a TensorBoard that has loaded the two runs."""
    folder = tmp_path_factory.mktemp("logs")
    _write(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (folder / "server.log").open("wb")
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port",
         str(port), "--reload_interval", "1", "--samples_per_plugin", "scalars=100000"],
        stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
        while not _ready(url) and time.monotonic() < deadline and server.poll() is None:
            pause.wait(0.25)
        assert _ready(url), (folder / "server.log").read_text()

        def ask(path: str, body: dict[str, Any] | None = None, **query: str) -> Any:
            return _ask(f"{url}/data/plugin/{path}?{urllib.parse.urlencode(query)}", body)

        yield ask
    finally:
        server.terminate()
        server.wait(10)
        log.close()


def test_a_resumed_run_shows_each_step_once(ask: Callable[..., Any]) -> None:
    """200 points of 200 steps, the second values after the resume, wall times kept."""
    for tag in TAGS:
        points = ask("scalars/scalars", run="resumed", tag=tag)
        assert points == [[s * 2.0, s, 1.0 if s <= 100 else 2.0] for s in range(1, 201)], tag


def test_there_are_no_runs_but_ours(ask: Callable[..., Any]) -> None:
    """No sub-run for settings or a group of series; series have their title and meaning."""
    tags = ask("scalars/tags")
    assert sorted(tags) == ["other", "resumed"]
    assert sorted(tags["resumed"]) == ["perf/data_pct", "perf/step_ms", "perf_summary/step_ms"]
    assert tags["resumed"]["perf/step_ms"]["displayName"] == "time per step (ms)"
    assert "Time of the window" in tags["resumed"]["perf/step_ms"]["description"]


def test_the_alerts_are_shown_as_text(ask: Callable[..., Any]) -> None:
    """Every alert that stands, those of one step too, with its cause and its advice; none that is undone."""
    assert "perf_alert/log" in ask("text/tags")["resumed"]
    texts = [entry["text"] for entry in ask("text/text", run="resumed", tag="perf_alert/log")]
    assert len(texts) == 4
    assert "Resumed at step 100." in texts.pop(1)
    for text, cause in zip(texts, ("number one", "number two", "number three"), strict=True):
        assert f"cause {cause}" in text
        assert "<strong>Advice:</strong> Use num_workers=4." in text
        assert "33 % against a limit of 10 %" in text


def test_the_dashboard_has_five_charts(ask: Callable[..., Any]) -> None:
    """The layouts of both runs and both sessions make one category of five charts, which find their tags."""
    (category,) = ask("custom_scalars/layout")["category"]
    assert category["title"] == "Training performance"
    assert len(category["chart"]) == 5
    pattern = category["chart"][4]["multiline"]["tag"][0]
    found = ask("custom_scalars/scalars", run="resumed", tag=pattern)
    assert found["regex_valid"]
    assert list(found["tag_to_events"]) == ["perf/data_pct"]


def test_the_settings_are_a_row_for_each_run(ask: Callable[..., Any]) -> None:
    """The hparams table has the columns of both runs, a row for each, and the summary as a metric."""
    experiment = ask("hparams/experiment", {"experimentName": ""})
    assert {"lr", "bs", "world_size"} <= {info["name"] for info in experiment["hparamInfos"]}
    metrics = {(info["name"]["group"], info["name"]["tag"]) for info in experiment["metricInfos"]}
    assert ("", "perf_summary/step_ms") in metrics
    groups = ask(
        "hparams/session_groups",
        {"experimentName": "", "startIndex": 0, "sliceSize": 10, "allowedStatuses": ["STATUS_UNKNOWN"],
         "colParams": [{"metric": {"group": "", "tag": "perf_summary/step_ms"}}]},
    )["sessionGroups"]  # fmt: skip
    rows = {group["name"]: [session["name"] for session in group["sessions"]] for group in groups}
    assert rows == {"resumed": ["resumed"], "other": ["other"]}
