"""What the tests of delivery share: records, a started delivery, and scripts in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trackperf.delivery import Delivery
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from trackperf.testing import MemorySink

INFO = RunInfo(run_id="0" * 32, name="run", dir="runs", started_at=1.7e9)
SUMMARY = RunSummary(steps=3, samples=None)
FINISHED = Status.FINISHED
LONG_S = 30.0


def point(step: int) -> Point:
    """Return a point of two values."""
    return Point(step=step, wall_time=1.7e9 + step, values={"perf/step_ms": float(step), "perf/train_s": 1.0})


def alert(step: int) -> Alert:
    """Return an alert of about a kilobyte."""
    return Alert(
        rule="loader_latency", state="raised", level="warning", step=step, wall_time=1.7e9,
        value=42.0, threshold=10.0, cause="c" * 100, advice="a" * 100,
    )  # fmt: skip


def started(*sinks: MemorySink, max_bytes: int = 2**24) -> Delivery:
    """Return a delivery that has been started and opened."""
    delivery = Delivery(sinks, max_bytes=max_bytes)
    delivery.start()
    delivery.open(INFO)
    return delivery


def open_files() -> int:
    """Return how many file descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def run_child(body: str, *, timeout: float = 30.0) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a script in a new process; return what it left and how long it took after its word `go`."""
    head = """
        import atexit, gc, os, signal, sys, threading, time
        from trackperf.delivery import Delivery
        from trackperf.record import Point, RunInfo, RunSummary, Status
        from trackperf.testing import MemorySink, StallingSink
        INFO = RunInfo(run_id="0" * 32, name="run", dir="runs", started_at=1.7e9)
        SUMMARY = RunSummary(steps=3, samples=None)
        def point(step):
            return Point(step=step, wall_time=1.7e9, values={"perf/step_ms": 1.0})
    """
    script = textwrap.dedent(head) + textwrap.dedent(body)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        since = time.monotonic()
        try:
            rest, errors = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
        took = time.monotonic() - since
    return subprocess.CompletedProcess(child.args, child.returncode, first + rest, errors), took
