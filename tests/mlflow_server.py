"""MLflow's own database and server for tests: made once, on loopback, and gone with the last test."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from trackperf_mlflow import MlflowReader, MlflowSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackperf.history import RunHistory
    from trackperf.record import RunInfo

__all__ = ["MARKS", "Proxy", "contract", "database", "mlflow_uri", "proxy"]

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

MARKS = [
    pytest.mark.xdist_group("mlflow"),
    # MLflow's own use of what it is built on.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
"""Marks of every test of the adapter: one process has server and database."""

UP_S = 60.0
_made: dict[str, str] = {}


def _template(factory: pytest.TempPathFactory) -> Path:
    """Return a database with MLflow's tables; making them takes seconds, copying them does not."""
    if "template" not in _made:
        path = factory.mktemp("mlflow") / "template.db"
        code = "import sys, mlflow; mlflow.MlflowClient(sys.argv[1]).search_experiments()"
        command = [sys.executable, "-c", code, f"sqlite:///{path}"]
        subprocess.run(command, check=True, capture_output=True, timeout=100, cwd=path.parent)
        _made["template"] = str(path)
    return Path(_made["template"])


@pytest.fixture
def database(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of an empty tracking database in the test's folder, MLflow's default."""
    path = tmp_path / "mlflow.db"
    shutil.copy(_template(tmp_path_factory), path)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{path}"
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def mlflow_uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a real server, the same for all tests of this process."""
    if "server" not in _made:
        folder = tmp_path_factory.mktemp("mlflow-server")
        shutil.copy(_template(tmp_path_factory), folder / "mlflow.db")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
            *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--workers", "1"),
            *("--artifacts-destination", str(folder / "artifacts")),
        ]
        environ = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environ.pop("MLFLOW_TRACKING_URI", None)
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log)
        request.config.add_cleanup(lambda: _kill(server))
        _wait_for(f"http://127.0.0.1:{port}/health", folder / "log")
        _made["server"] = f"http://127.0.0.1:{port}"
    return _made["server"]


def contract(uri: str) -> tuple[Callable[[], MlflowSink], Callable[[RunInfo], RunHistory]]:
    """
    Return what the contract kit needs: a maker of sinks, and what reads a run back.

    The kit's cases have runs of one id in folders of their own; here they are in experiments of their own.
    """
    places: dict[tuple[str, str], str] = {}

    class Sink(MlflowSink):
        def open(self, run: RunInfo) -> None:
            self._where = dataclasses.replace(self._where, experiment=Path(run.dir).name, experiment_id=None)
            super().open(run)
            places[run.dir, run.run_id] = self.address()["run_id"]

    def read(run: RunInfo) -> RunHistory:
        return MlflowReader().read(f"{uri}#{places[run.dir, run.run_id]}")

    return lambda: Sink(tracking_uri=uri), read


def _wait_for(url: str, log: Path) -> None:
    until = time.monotonic() + UP_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        assert time.monotonic() < until, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)


def _kill(server: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*psutil.Process(server.pid).children(recursive=True), psutil.Process(server.pid)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    server.wait(timeout=10)


@dataclass
class Proxy:
    """Stands before the server, and answers instead of it as long as it is told to."""

    url: str
    fault: Callable[[BaseHTTPRequestHandler], bool] | None = None
    """Answers a request itself and returns True, or returns False to let it through."""
    seen: list[str] = field(default_factory=list)
    """Requests, as method and path."""


@pytest.fixture
def proxy(mlflow_uri: str) -> Iterator[Proxy]:
    """Return a proxy before the real server."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            front.seen.append(f"{self.command} {self.path.partition('?')[0]}")
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else None
            if front.fault is not None and front.fault(self):
                return
            status, answer = forward(mlflow_uri + self.path, self.command, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = _serve  # noqa: N815 - the names that http.server looks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    front = Proxy(url=f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield front
    server.shutdown()
    server.server_close()
    thread.join(10)


def forward(url: str, method: str, body: bytes | None) -> tuple[int, bytes]:
    """Ask the real server."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
