"""
What the tests of the W&B adapter share: scripts in processes of their own, and W&B's own reader.

Importing W&B takes more than a second of CPU. So a script begins in a fork of one process that has done that
and nothing else (no thread, no setting read), and ends as any process does. `fresh=True` starts an
interpreter of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gzip
import http.server
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

HEAD = """
import logging, os, signal, sys, threading, time
from pathlib import Path
logging.basicConfig(format="%(message)s", level=logging.WARNING)
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status
from trackperf_wandb import WandbSink
INFO = RunInfo(run_id="0" * 31 + "1", name="ours", dir="runs", started_at=1.7e9)
def point(step):
    return Point(step=step, wall_time=1.7e9 + step, values={"perf/step_ms": float(step), "loss": -1.0})
def summary(steps):
    return RunSummary(steps=steps, samples=None, phases={"train": 1.0})
"""


def environment(folder: Path, **changes: str) -> dict[str, str]:
    """Return an environment in which W&B is offline, knows no account and asks no machine for anything."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return {
        **kept,
        "HOME": str(folder),
        "WANDB_MODE": "offline",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_X_STATS_COREWEAVE_METADATA_BASE_URL": "http://127.0.0.1:9",
        **changes,
    }


class Child(Protocol):
    """A process that runs a script."""

    def wait(self) -> int:
        """Return its exit code once it has ended, the signal's number below zero."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...


class Fork:
    """A script in a fork of the process that has W&B imported."""

    def __init__(self, script: str, folder: Path, env: dict[str, str], out: int, err: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_nursery(), [b"+"], [theirs.fileno(), out, err])
        self._lines = ours.makefile("r", encoding="utf-8")
        with ours:
            ours.sendall(json.dumps([script, str(folder), env]).encode() + b"\n")
        self._pid = int(self._lines.readline())

    def wait(self) -> int:
        """Return its exit code once it has ended, the signal's number below zero."""
        with self._lines:
            return int(self._lines.readline())

    def kill(self) -> None:
        """Kill it."""
        os.kill(self._pid, signal.SIGKILL)


@functools.cache
def _nursery() -> socket.socket:
    """Start the process that the scripts are forks of; it ends with this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        at = theirs.fileno()
        command = [sys.executable, __file__, str(at)]
        env = environment(Path(__file__).parent, OPENBLAS_NUM_THREADS="1")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[at], env=env)

    def end() -> None:
        ours.close()
        process.wait(10)

    atexit.register(end)
    return ours


def _raise_children(control: socket.socket) -> None:
    """Run a script in a fork of this process for each request, until nobody is left to make one."""
    sys.path[0] = ""  # as for `python -c`
    for name in ("wandb.sdk.launch.inputs.schema", "psutil", "pynvml", "trackperf_wandb.sink"):
        importlib.import_module(name)
    for name in ("collector", "run", "reporter", "registry", "delivery", "sinks.jsonl"):
        importlib.import_module(f"trackperf.{name}")
    while True:
        word, found, _, _ = socket.recv_fds(control, 1, 3)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG if word else 0)[0]:
                pass
        if not word:
            return
        if os.fork() == 0:
            break
        for at in found:
            os.close(at)
    control.close()
    _keep(socket.socket(fileno=found[0]), *found[1:])


def _keep(caller: socket.socket, out: int, err: int) -> None:
    """Run the script in a fork, tell the caller its number and its exit code; the fork returns from here."""
    with caller.makefile("r", encoding="utf-8") as lines:
        script, folder, env = json.loads(lines.readline())
    child = os.fork()
    if child:
        os.close(out)
        os.close(err)
        caller.sendall(f"{child}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        caller.sendall(f"{code}\n".encode())
        os._exit(0)
    caller.close()
    for given, standard in ((out, 1), (err, 2)):
        os.dup2(given, standard)
        os.close(given)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = ["-c"]
    exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})


def run_script(
    body: str, folder: Path, *, timeout: float = 60.0, fresh: bool = False, **changes: str
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a script below `folder`; return what it left, and the seconds from its word `go` to its end."""
    script, env = HEAD + textwrap.dedent(body), environment(folder, **changes)
    (from_out, out), (from_err, err) = os.pipe(), os.pipe()
    with (
        os.fdopen(from_out, encoding="utf-8") as lines,
        os.fdopen(from_err, encoding="utf-8") as errors,
        ThreadPoolExecutor(1) as pool,
    ):
        child: Child
        if fresh:
            child = subprocess.Popen(
                [sys.executable, "-c", script], stdout=out, stderr=err, cwd=folder, env=env
            )
        else:
            child = Fork(script, folder, env, out, err)
        os.close(out)
        os.close(err)
        said_errors = pool.submit(errors.read)
        limit = threading.Timer(timeout, child.kill)
        limit.start()
        said, since = "", time.monotonic()
        for line in lines:
            said += line
            if line.strip() == "go":
                since = time.monotonic()
        told = said_errors.result()
        code = child.wait()
        took = time.monotonic() - since
        limit.cancel()
    return subprocess.CompletedProcess(script, code, said, told), took


def files(folder: Path) -> list[Path]:
    """Return W&B's files of records below a folder, in the order of their names."""
    return sorted(folder.glob("**/run-*.wandb"), key=lambda path: path.parent.name)


def records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, as W&B's own reader prints them."""
    from wandb.util import get_core_path

    # What `wandb leet inspect --json` runs, without a second of Python before it.
    command = [get_core_path(), "leet", "inspect", "--no-observability", "--json", "--run-file", str(path)]
    done = subprocess.run(
        [*command, str(path.parent)], capture_output=True, text=True, check=True, env=environment(path.parent)
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the history among records."""
    return [record["history"]["item"] for record in found if record["type"] == "history"]


def values(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return what the records of a kind (`config`, `summary`) set, the last standing."""
    last: dict[str, Any] = {}
    for record in found:
        told = record["run"].get("config", {}) if (record["type"], kind) == ("run", "config") else {}
        last |= told.get("update", {})
        if record["type"] == kind:
            last |= record[kind].get("update", {})
    return last


class Server:
    """As much of W&B's server as a run needs: it takes everything, and counts the rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.exit_codes: list[int] = []
        self.names: list[str] = []
        parts = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                answer: dict[str, Any] = {}
                if self.path.endswith("/graphql"):
                    answer = {"data": parts.answer(json.loads(body), self.headers["Host"])}
                elif not self.path.startswith("/upload"):
                    parts.take(json.loads(body or b"{}"))
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST  # noqa: N815 - the names that the server calls

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, asked: dict[str, Any], host: str) -> dict[str, Any]:
        """Return the answer to a query."""
        given = asked.get("variables") or {}
        if "upsertBucket" in asked["query"]:
            self.names.append(given.get("displayName") or "")
            project = {"id": "p", "name": given.get("project") or "p", "entity": {"name": "e"}}
            bucket = {"id": "r", "name": given.get("name"), "displayName": "r", "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in asked["query"]:
            files = [{"name": name, "uploadUrl": f"http://{host}/upload"} for name in given["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        return {"viewer": {"id": "u", "username": "u", "entity": "e", "teams": {"edges": []}}}

    def take(self, sent: dict[str, Any]) -> None:
        """Count the rows of a piece of a run."""
        self.rows += len(sent.get("files", {}).get("wandb-history.jsonl", {}).get("content", ()))
        if sent.get("complete"):
            self.exit_codes.append(int(sent["exitcode"]))

    def close(self) -> None:
        """Be gone."""
        self._server.shutdown()
        self._server.server_close()


if __name__ == "__main__":
    _raise_children(socket.socket(fileno=int(sys.argv[1])))
