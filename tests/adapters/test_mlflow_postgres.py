"""MLflow's database on a PostgreSQL server, where one is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mlflow_server import MARKS, contract
from trackperf_mlflow import MlflowSink

import trackperf._contract
from trackperf.errors import UnavailableError
from trackperf.testing import check_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from trackperf.record import Point, RunInfo

    MakeRun: TypeAlias = Callable[..., RunInfo]
    MakePoints: TypeAlias = Callable[..., list[Point]]

pytestmark = MARKS

BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("/usr/bin"))
DRIVER = next((name for name in ("psycopg", "psycopg2") if importlib.util.find_spec(name)), None)


class Postgres:
    """A server in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        # The server does not run as the superuser.
        self._user = "postgres" if os.geteuid() == 0 else None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.uri = f"postgresql+{DRIVER}://tester@127.0.0.1:{self._port}/postgres"
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run("initdb", "-D", str(self._data), "-U", "tester", "-A", "trust", "-N")
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        log = str(self._data / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        """Stop the server at once."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [str(BIN / name), *arguments],
            check=True,
            user=self._user,
            cwd="/",
            timeout=60,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """Return a server that runs."""
    if not (BIN / "initdb").exists():
        pytest.skip("no PostgreSQL server is installed")
    if DRIVER is None:
        pytest.skip("no driver for PostgreSQL is installed: pip install psycopg2-binary")
    # The test's own folder is closed to the user that the server runs as.
    with tempfile.TemporaryDirectory(prefix="trackperf-postgres-") as folder:
        server = Postgres(Path(folder))
        yield server
        server.stop()


def test_on_postgresql(
    postgres: Postgres, make_run: MakeRun, make_points: MakePoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contract holds; a server that goes away is away, and takes everything once it is back."""
    cases = [case for case in trackperf._contract._CASES if case.__name__ != "_many_points"]
    monkeypatch.setattr("trackperf._contract._CASES", cases)
    factory, read = contract(postgres.uri)
    check_sink(factory, read=read)
    sink = MlflowSink(tracking_uri=postgres.uri)
    sink.open(make_run())
    postgres.stop()
    with pytest.raises(UnavailableError):
        sink.write(make_points([1]))
    with pytest.raises(UnavailableError, match="cannot be reached"):
        MlflowSink(tracking_uri=postgres.uri).open(make_run(run_id="b" * 32))
    postgres.start()
    sink.write(make_points([1]))
    assert len(sink._api.history(sink.address()["run_id"], "perf/step_ms").step) == 1
