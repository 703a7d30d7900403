"""What the tests of spools share: a tracker in a file, its plug-in, and scripts that use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUMMARY = RunSummary(steps=3, samples=None, phases={"train": 1.5})
TRACKER = '''
    """A tracker that keeps runs in files below TRACKER_ROOT, and is away while there is no file `up`."""

    import json, os
    from pathlib import Path
    from trackperf.errors import UnavailableError

    class FileTracker:
        name = "filetracker"

        def __init__(self):
            self.root, self.file, self.run_id = Path(os.environ["TRACKER_ROOT"]), None, ""

        def address(self):
            return {"run_id": self.run_id} if self.run_id else {}

        def rejoin(self, address):
            self.reach()
            self.run_id = address["run_id"]
            self.note({"rejoin": self.run_id})

        def open(self, run):
            self.reach()
            self.run_id = run.run_id
            self.note({"open": run.name, "resume_step": run.resume_step})

        def write(self, points):
            self.reach()
            for point in points:
                self.note({"step": point.step, "values": dict(point.values)})

        def alert(self, alert):
            self.reach()
            self.note({"alert": alert.step})

        def close(self, summary, status):
            self.reach()
            self.note({"close": status.value, "steps": summary.steps, "phases": dict(summary.phases)})

        def reach(self):
            if not (self.root / "up").exists():
                raise UnavailableError("nobody answers")

        def note(self, what):
            with (self.root / f"{self.run_id}.jsonl").open("ab", buffering=0) as file:
                file.write(json.dumps(what).encode() + b"\\n")
'''
HEAD = """
    import os, random, signal, sys, threading, time
    from trackperf.delivery import Delivery
    from trackperf.record import Alert, Point, RunInfo, RunSummary, Status
    from trackperf.testing import AwaySink, MemorySink, StallingSink
    SUMMARY = RunSummary(steps=3, samples=None)
    def info(name="run", **more):
        return RunInfo(run_id=f"{name:0>32}", name=name, dir="runs", started_at=1.7e9, **more)
    def point(step):
        values = {"perf/step_ms": step + 0.1, "perf_time/train_s": step / 4, "perf_time/wall_s": 1.0}
        return Point(step=step, wall_time=1.7e9 + step, values=values)
"""


class Tracker:
    """The file-backed tracker in a folder of its own, with its plug-in on the import path of children."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "tracker"
        self.root.mkdir()
        site = folder / "site"
        dist = site / "filetracker-1.0.dist-info"
        dist.mkdir(parents=True)
        (site / "filetracker.py").write_text(textwrap.dedent(TRACKER))
        (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: filetracker\nVersion: 1.0\n")
        (dist / "entry_points.txt").write_text("[trackperf.sinks]\nfiletracker = filetracker:FileTracker\n")
        self.env = {**os.environ, "TRACKER_ROOT": str(self.root), "PYTHONPATH": str(site)}

    def up(self, up: bool = True) -> None:
        """Let the tracker be there, or away."""
        (self.root / "up").touch() if up else (self.root / "up").unlink(missing_ok=True)

    def start(self, body: str) -> subprocess.Popen[str]:
        """Start a script in a new process, in the folder."""
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(HEAD) + textwrap.dedent(body)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.env,
        )

    def run(self, body: str) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        with self.start(body) as child:
            out, errors = child.communicate(timeout=60)
        return subprocess.CompletedProcess(child.args, child.returncode, out, errors)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `trackperf` with words."""
        return subprocess.run(
            [sys.executable, "-m", "trackperf", *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.env,
            timeout=60,
            check=False,
        )

    def notes(self, name: str = "run") -> list[dict[str, Any]]:
        """Return what the tracker got for a run, in order."""
        path = self.root / f"{name:0>32}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def steps(self, name: str = "run") -> list[int]:
        """Return the steps that the tracker got for a run, in order."""
        return [note["step"] for note in self.notes(name) if "step" in note]

    def spools(self) -> list[Path]:
        """Return the folders of spools that are left."""
        return sorted(path.parent for path in self.folder.glob("runs/**/spool.json"))


def info(folder: Path, name: str = "run", run_id: str = "", resume_step: int | None = None) -> RunInfo:
    """Return a run below a folder."""
    return RunInfo(
        run_id=run_id or f"{name:0>32}",
        name=name,
        dir=str(folder),
        started_at=1.7e9 + (resume_step or 0),
        resume_step=resume_step,
        tags={"note": "größer \udc80"},
    )


def point(step: int, extra: float | None = None) -> Point:
    """Return a point of two values, or three."""
    values = {"perf/step_ms": step + 0.1, "perf_time/train_s": step / 3}
    return Point(
        step=step, wall_time=1.7e9 + step, values=values if extra is None else values | {"val/loss": extra}
    )


def points(steps: Sequence[int]) -> list[Point]:
    """Return points at steps."""
    return [point(step) for step in steps]


def alert(step: int) -> Alert:
    """Return an alert."""
    return Alert(
        rule="loader_latency", state="raised", level="warning", step=step, wall_time=1.7e9, value=42.0,
        threshold=10.0, cause="Waiting took 42 %.", advice="Use 4 workers.",
    )  # fmt: skip


FINISHED = Status.FINISHED
