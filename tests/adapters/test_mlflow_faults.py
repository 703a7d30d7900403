"""A server in trouble: every call comes back in time and says so, and nothing is stored twice afterwards."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import pytest
from mlflow_server import MARKS, Proxy, contract, mlflow_uri, proxy  # noqa: F401 - fixtures
from trackperf_mlflow import MlflowReader, MlflowSink
from trackperf_mlflow.api import Deadlines, RefusedError

import trackperf._contract
from trackperf.errors import UnavailableError
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status
from trackperf.testing import check_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.server import BaseHTTPRequestHandler
    from typing import TypeAlias

    MakeRun: TypeAlias = Callable[..., RunInfo]
    MakePoints: TypeAlias = Callable[..., list[Point]]
    MakeAlert: TypeAlias = Callable[..., Alert]

pytestmark = MARKS

LIMITS = Deadlines(connect_s=1.0, answer_s=1.0)


def answer(status: int, body: str = "", **headers: str) -> Callable[[BaseHTTPRequestHandler], bool]:
    """Return a fault: an answer of the proxy's own."""

    def fault(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(status)
        for name, text in headers.items():
            handler.send_header(name.replace("_", "-"), text)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())
        return True

    return fault


def every_call(sink: MlflowSink, run: RunInfo, points: list[Point], alert: Alert, end: RunSummary) -> Any:
    """Return what trackperf calls, after a good `open`."""
    return (
        lambda: sink.open(run),
        lambda: sink.write(points),
        lambda: sink.alert(alert),
        lambda: sink.close(end, Status.FINISHED),
    )


@pytest.fixture(params=["dead", "silent"])
def bad_address(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address where nothing listens, or something that accepts and never answers."""
    if request.param == "dead":
        yield "http://127.0.0.1:9"
        return
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


def test_it_keeps_the_contract_of_sinks(
    mlflow_uri: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does what trackperf counts on, through a real server too (10 000 points: see the database)."""
    cases = [case for case in trackperf._contract._CASES if case.__name__ != "_many_points"]
    monkeypatch.setattr("trackperf._contract._CASES", cases)
    factory, read = contract(mlflow_uri)
    check_sink(factory, read=read)


def test_nobody_there(bad_address: str, make_run: MakeRun) -> None:
    """A call comes back within its limit, says it is away, and changes no setting of the process."""
    before = dict(os.environ)
    sink = MlflowSink(tracking_uri=bad_address, deadlines=LIMITS, experiment="x")
    start = time.monotonic()
    with pytest.raises(UnavailableError, match="did not answer"):
        sink.open(make_run())
    assert time.monotonic() - start < 3.0
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("fault", "retry_after_s"),
    [
        (answer(500, "no JSON"), None),
        (answer(503, '{"error_code": "TEMPORARILY_UNAVAILABLE", "message": "locked"}'), None),
        (answer(429, '{"error_code": "REQUEST_LIMIT_EXCEEDED"}', Retry_After="7"), 7.0),
        (answer(401, "who are you?"), None),
        (answer(404, "<html>not MLflow</html>"), None),
        (answer(200, "<html>a log-in page</html>"), None),
    ],
    ids=["500", "503", "429", "401", "404", "page"],
)
def test_a_server_in_trouble(
    proxy: Proxy,  # noqa: F811
    make_run: MakeRun,
    make_points: MakePoints,
    make_alert: MakeAlert,
    summary: RunSummary,
    fault: Any,
    retry_after_s: float | None,
) -> None:
    """Every call says that the tracker is away and how long to wait; afterwards all is there, once."""
    sink = MlflowSink(tracking_uri=proxy.url, deadlines=LIMITS)
    run, points = make_run(run_id=os.urandom(16).hex()), make_points([1, 2])
    for call in every_call(sink, run, points, make_alert(), summary):
        proxy.fault = fault
        with pytest.raises(UnavailableError) as caught:
            call()
        assert caught.value.retry_after_s == retry_after_s
        proxy.fault = None
        call()
    history = MlflowReader().read(f"{proxy.url}#{sink.address()['run_id']}")
    assert history.series["perf/step_ms"].step.tolist() == [1, 2]
    assert (len(history.alerts), history.status) == (1, Status.FINISHED)


def test_a_late_answer(
    proxy: Proxy,  # noqa: F811
    mlflow_uri: str,  # noqa: F811
    make_run: MakeRun,
    make_points: MakePoints,
) -> None:
    """What was stored although the answer came too late is stored once when it comes again."""
    sink = MlflowSink(tracking_uri=proxy.url, deadlines=LIMITS)
    sink.open(make_run(run_id=os.urandom(16).hex()))
    gone = threading.Event()

    def stored_but_not_said(handler: BaseHTTPRequestHandler) -> bool:
        MlflowSink.write(other, make_points([1, 2]))
        return gone.wait(30)

    other = MlflowSink(tracking_uri=mlflow_uri)
    other.rejoin({**sink.address(), "tracking_uri": mlflow_uri})
    other.open(sink._run)
    proxy.fault = stored_but_not_said
    with pytest.raises(UnavailableError):
        sink.write(make_points([1, 2]))
    gone.set()
    proxy.fault = None
    sink.write(make_points([1, 2]))
    found = mlflow.MlflowClient(mlflow_uri).get_metric_history(sink.address()["run_id"], "perf/step_ms")
    assert [one.step for one in found] == [1, 2]


def test_a_lost_answer_makes_no_second_run(
    proxy: Proxy,  # noqa: F811
    mlflow_uri: str,  # noqa: F811
    make_run: MakeRun,
) -> None:
    """A run that was made, of which the answer never came, is found again, also by a later process."""
    run, made = make_run(run_id=os.urandom(16).hex()), threading.Event()

    def made_but_not_said(handler: BaseHTTPRequestHandler) -> bool:
        if not handler.path.endswith("runs/create"):
            return False
        MlflowSink(tracking_uri=mlflow_uri).open(run)
        made.set()
        return answer(504)(handler)

    proxy.fault = made_but_not_said
    sink = MlflowSink(tracking_uri=proxy.url, deadlines=LIMITS)
    with pytest.raises(UnavailableError):
        sink.open(run)
    assert made.wait(30)
    later = MlflowSink(tracking_uri=proxy.url)
    later.rejoin(sink.address())
    later.open(run)
    condition = f"tags.`trackperf.run_id` = '{run.run_id}'"
    assert [one.info.run_id for one in mlflow.MlflowClient(mlflow_uri).search_runs(["0"], condition)] == [
        later.address()["run_id"]
    ]


def test_half_of_a_long_batch(
    proxy: Proxy,  # noqa: F811
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an outage in the middle of many values, what is there already is not sent again."""
    sink = MlflowSink(tracking_uri=proxy.url, deadlines=Deadlines())
    sink.open(make_run(run_id=os.urandom(16).hex()))
    monkeypatch.setattr("trackperf_mlflow.sending._VALUES", 100)
    keys = [f"perf_x/{at}" for at in range(10)]
    points = [Point(step=step, wall_time=1.0 * step, values=dict.fromkeys(keys, 1.0)) for step in range(30)]
    proxy.seen.clear()
    proxy.fault = lambda handler: len(proxy.seen) == 2 and answer(503)(handler)
    with pytest.raises(UnavailableError):
        sink.write(points)
    sink.write(list(points))
    assert len(proxy.seen) == 4
    history = MlflowReader().read(f"{proxy.url}#{sink.address()['run_id']}")
    assert all(history.series[key].step.tolist() == list(range(30)) for key in keys)


def test_a_request_that_is_too_large(
    proxy: Proxy,  # noqa: F811
    make_run: MakeRun,
    make_points: MakePoints,
) -> None:
    """Where a gateway takes only small requests, values go in smaller parts; none is lost."""
    sink = MlflowSink(tracking_uri=proxy.url, deadlines=Deadlines())
    sink.open(make_run(run_id=os.urandom(16).hex()))

    def gateway(handler: BaseHTTPRequestHandler) -> bool:
        return int(handler.headers.get("Content-Length") or 0) > 20_000 and answer(413, "too large")(handler)

    proxy.fault = gateway
    sink.write(make_points(range(1, 601)))
    history = MlflowReader().read(f"{proxy.url}#{sink.address()['run_id']}")
    assert history.series["perf/step_ms"].step.tolist() == list(range(1, 601))


def test_a_refusal_is_final(proxy: Proxy, make_run: MakeRun) -> None:  # noqa: F811
    """What MLflow itself says no to is not an outage."""
    with pytest.raises(RefusedError, match="not found"):
        MlflowSink(tracking_uri=proxy.url, run_id="0" * 32).open(make_run())


def test_pages_and_files(
    proxy: Proxy,  # noqa: F811
    make_run: MakeRun,
    make_points: MakePoints,
    make_alert: MakeAlert,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Over HTTP a long series is read page by page, and the table of alerts goes through the server."""
    sink = MlflowSink(tracking_uri=proxy.url, experiment="with files")
    sink.open(make_run(run_id=os.urandom(16).hex()))
    sink.write(make_points(range(1, 101)))
    sink.alert(make_alert())
    monkeypatch.setattr("trackperf_mlflow.rest._PAGE", 30)
    proxy.seen.clear()
    history = MlflowReader().read(f"{proxy.url}#{sink.address()['run_id']}")
    assert history.series["perf/step_ms"].step.tolist() == list(range(1, 101))
    assert proxy.seen.count("GET /api/2.0/mlflow/metrics/get-history") == 4
    client, run_id = mlflow.MlflowClient(proxy.url), sink.address()["run_id"]
    table = json.loads(
        Path(client.download_artifacts(run_id, "trackperf/alerts.json", str(tmp_path))).read_text()
    )
    assert table["data"][0][:4] == [40, "raised", "warning", "loader_latency"]
    assert "trackperf/alerts.json" in client.get_run(run_id).data.tags["mlflow.loggedArtifacts"]
