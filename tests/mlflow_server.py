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
from trackperf_mlflow.api import Deadlines
from trackperf_mlflow.tables import make_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trackperf.history import RunHistory
    from trackperf.record import RunInfo

__all__ = ["MARKS", "Proxy", "Server", "contract", "database", "mlflow_server", "mlflow_uri", "proxy"]

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

MARKS = [
    pytest.mark.xdist_group("mlflow"),
    # MLflow's own use of what it is built on.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
"""Marks of every test of the adapter: one process has server and database."""

UP_S = 60.0
_made: dict[str, Path] = {}
_server: list[Server] = []


def _template(factory: pytest.TempPathFactory) -> Path:
    """Return a database with MLflow's tables; making them takes seconds, copying them does not."""
    if "template" not in _made:
        path = factory.mktemp("mlflow") / "template.db"
        make_tables(f"sqlite:///{path}", Deadlines())
        _made["template"] = path
    return _made["template"]


class Server:
    """A real `mlflow server` on loopback, which can be killed and started again where it was."""

    def __init__(self, folder: Path) -> None:
        """Start it on the database in a folder."""
        self._log = folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
            *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--workers", "1"),
            *("--artifacts-destination", str(folder / "artifacts")),
        ]
        environ = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environ.pop("MLFLOW_TRACKING_URI", None)
        self._start(command, environ)
        self.wait()
        # What serves is a child of the command; that is what is started again.
        serving = psutil.Process(self._process.pid).children()[0]
        self._again = (serving.cmdline(), serving.environ())

    def again(self) -> None:
        """Start it again, unless it runs; it does not answer yet."""
        if self._process.poll() is not None:
            self._start(*self._again)

    def wait(self) -> None:
        """Wait until it answers."""
        until = time.monotonic() + UP_S
        while True:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/health", timeout=5) as told,
            ):
                if told.status == 200:
                    return
            assert time.monotonic() < until, self._log.read_text(errors="replace")[-2000:]
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it, as a machine that breaks down does."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            for one in (*process.children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        self._process.wait(timeout=10)

    def _start(self, command: list[str], environ: Mapping[str, str]) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._log.parent, env=environ, stdout=log, stderr=log
            )


@pytest.fixture
def database(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return the address of an empty tracking database in the test's folder, MLflow's default there."""
    path = tmp_path / "mlflow.db"
    shutil.copy(_template(tmp_path_factory), path)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{path}"
    # Below it MLflow keeps files.
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def mlflow_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Return a real server, the same for all tests of this process; it runs."""
    return _the_server(request.config, tmp_path_factory)


@pytest.fixture(scope="session")
def mlflow_uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of the real server."""
    return _the_server(request.config, tmp_path_factory).url


def _the_server(config: pytest.Config, factory: pytest.TempPathFactory) -> Server:
    if not _server:
        folder = factory.mktemp("mlflow-server")
        shutil.copy(_template(factory), folder / "mlflow.db")
        server = Server(folder)
        _server.append(server)
        config.add_cleanup(server.kill)
    return _server[0]


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
