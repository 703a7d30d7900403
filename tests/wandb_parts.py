"""What the tests of the W&B adapter share: scripts in processes of their own, and W&B's own reader."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

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


def run_script(
    body: str, folder: Path, *, timeout: float = 60.0, **changes: str
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a script below `folder`; return what it left, and the seconds from its word `go` to its end."""
    script = HEAD + textwrap.dedent(body)
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(folder, **changes),
    ) as child:
        assert child.stdout is not None
        said, since = "", time.monotonic()
        for line in child.stdout:
            said += line
            if line.strip() == "go":
                since = time.monotonic()
                break
        try:
            rest, errors = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
        took = time.monotonic() - since
    return subprocess.CompletedProcess(child.args, child.returncode, said + rest, errors), took


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
