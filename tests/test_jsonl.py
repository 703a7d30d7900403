"""The JSON-lines sink and its reader."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackperf.errors import ReadError
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status
from trackperf.sinks.jsonl import FILE_NAME, JsonlReader, JsonlSink
from trackperf.testing import check_sink

ALERT = Alert(
    rule="loader_latency", state="raised", level="warning", step=20, wall_time=1.7e9,
    value=42.0, threshold=10.0, cause="größer",
)  # fmt: skip


def info(folder: Path, name: str = "run", resume_step: int | None = None) -> RunInfo:
    """Return a run in a folder."""
    return RunInfo(run_id="0" * 32, name=name, dir=str(folder), started_at=1.7e9, resume_step=resume_step)


def points(first: int, last: int, value: float = 1.0) -> list[Point]:
    """Return a point for each step; training takes 0.5 s a step."""
    return [
        Point(step=step, wall_time=1.7e9 + step, values={"x": value, "perf/train_s": step / 2})
        for step in range(first, last + 1)
    ]


def record(run: RunInfo, given: list[Point], *, end: bool = True) -> Path:
    """Write a run and return its file."""
    sink = JsonlSink()
    sink.open(run)
    sink.write(given)
    if end:
        sink.close(RunSummary(steps=given[-1].step, samples=None), Status.FINISHED)
    elif sink._file is not None:
        sink._file.close()
    return Path(run.dir) / run.name / FILE_NAME


class TestSink:
    """What stands in the file."""

    def test_the_lines(self, tmp_path: Path) -> None:
        """Each line is an object with a type, readable by anything."""
        sink = JsonlSink()
        sink.open(info(tmp_path))
        sink.write(points(1, 2))
        sink.alert(ALERT)
        sink.close(RunSummary(steps=2, samples=16), Status.FAILED)
        lines = [json.loads(line) for line in (tmp_path / "run" / FILE_NAME).read_text("utf-8").splitlines()]
        assert [line["type"] for line in lines] == ["run", "point", "point", "alert", "end"]
        assert lines[0]["name"] == "run"
        values = {"x": 1.0, "perf/train_s": 0.5}
        assert lines[1] == {"type": "point", "step": 1, "wall_time": 1.7e9 + 1, "values": values}
        assert lines[3]["cause"] == "größer"
        assert (lines[4]["status"], lines[4]["samples"]) == ("failed", 16)

    def test_kill_loses_nothing_handed_over(self, tmp_path: Path) -> None:
        """After `kill -9` every point that `write` returned for is in the file."""
        script = (
            "import os, signal, sys\n"
            "from trackperf.record import Point, RunInfo\n"
            "from trackperf.sinks.jsonl import JsonlSink\n"
            "sink = JsonlSink()\n"
            "sink.open(RunInfo(run_id='0', name='run', dir=sys.argv[1], started_at=0.0))\n"
            "for step in range(500):\n"
            "    sink.write([Point(step=step, wall_time=0.0, values={'x': 1.0})])\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        child = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=30)
        assert child.returncode == -signal.SIGKILL
        history = JsonlReader().read(str(tmp_path / "run"))
        assert len(history.series["x"]) == 500
        assert (history.status, history.summary, history.problems) == (None, None, ())

    def test_no_bare_nan(self, tmp_path: Path) -> None:
        """A value that is no number is left out, and numpy's own numbers are written as numbers."""
        values: dict[str, Any] = {"a": math.nan, "b": -math.inf, "c": np.float32(2.5), "d": np.float64(1.5)}
        path = record(info(tmp_path), [Point(step=1, wall_time=0.0, values=values)])
        assert "NaN" not in path.read_text("utf-8")
        assert "Infinity" not in path.read_text("utf-8")
        found = JsonlReader().read(str(path)).series
        assert {key: found[key].value.tolist() for key in found} == {"c": [2.5], "d": [1.5]}

    def test_a_run_never_overwrites_another(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A path that holds a run already stays as it is; the new run goes beside it, and says where."""
        path = tmp_path / "deep" / "perf.jsonl"
        for value in (1.0, 2.0, 3.0):
            sink = JsonlSink(path)
            sink.open(info(tmp_path))
            sink.write(points(1, 1, value))
            sink.close(RunSummary(steps=1, samples=None), Status.FINISHED)
        found = JsonlReader().find(str(tmp_path))
        assert [Path(run).name for run in found] == ["perf-2.jsonl", "perf-3.jsonl", "perf.jsonl"]
        assert [JsonlReader().read(run).series["x"].value.tolist() for run in found] == [[2.0], [3.0], [1.0]]
        assert "perf-2.jsonl" in caplog.messages[0]

    def test_a_folder_below_a_file(self, tmp_path: Path) -> None:
        """A place that cannot be written raises in `open`, with the path."""
        (tmp_path / "file").write_text("x")
        with pytest.raises(OSError, match="file"):
            JsonlSink().open(info(tmp_path / "file"))

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
    def test_a_full_disk_costs_only_what_did_not_fit(self, tmp_path: Path) -> None:
        """What a full disk cut off does not take the lines after it along."""
        sink = JsonlSink()
        sink.open(info(tmp_path))
        sink.write(points(1, 3))
        real = sink._file
        with Path("/dev/full").open("ab", buffering=0) as full:
            sink._file = full
            with pytest.raises(OSError, match="No space left"):
                sink.write(points(4, 5))
        assert real is not None
        real.write(b'{"type":"point","st')
        sink._file = real
        sink.write(points(6, 7))
        sink.close(RunSummary(steps=7, samples=None), Status.FINISHED)
        history = JsonlReader().read(str(tmp_path / "run"))
        assert history.series["x"].step.tolist() == [1, 2, 3, 6, 7]
        assert history.status is Status.FINISHED
        assert history.problems == ("damaged lines were left out: 5",)

    def test_the_contract(self) -> None:
        """The sink takes whatever trackperf may do with it, and the reader gives all of it back."""
        check_sink(JsonlSink, read=lambda run: JsonlReader().read(f"{run.dir}/{run.name}"))


class TestReader:
    """What comes back."""

    def test_everything_comes_back(self, tmp_path: Path) -> None:
        """Points, alerts, run, summary and status are as they were given."""
        sink, run = JsonlSink(), info(tmp_path)
        summary = RunSummary(steps=30, samples=960, phases={"train": 15.0})
        sink.open(run)
        sink.write(points(1, 30))
        sink.alert(ALERT)
        sink.close(summary, Status.FINISHED)
        history = JsonlReader().read(str(tmp_path / "run"))
        assert (history.name, history.source) == ("run", str(tmp_path / "run"))
        assert (history.info, history.alerts, history.summary) == (run, (ALERT,), summary)
        assert (history.status, history.problems, history.redone_steps) == (Status.FINISHED, (), 0)
        assert history.series["perf/train_s"].value.tolist() == [step / 2 for step in range(1, 31)]
        assert history.series["x"].wall_time.tolist() == [1.7e9 + step for step in range(1, 31)]

    def test_a_cut_file(self, tmp_path: Path) -> None:
        """A file that lacks its last bytes gives every whole line, and says that it is cut."""
        path = record(info(tmp_path), points(1, 100), end=False)
        os.truncate(path, path.stat().st_size - 7)
        history = JsonlReader().read(str(path))
        assert len(history.series["x"]) == 99
        assert history.problems == ("the file is cut: its last line (101) is incomplete",)

    def test_damaged_lines(self, tmp_path: Path) -> None:
        """Damaged lines are left out and named; all others stand, and no part of a damaged one does."""
        path = record(info(tmp_path), points(1, 20))
        lines = path.read_bytes().splitlines(keepends=True)
        lines[3] = b"\x00\xff" + lines[3]
        lines[5] = b'{"type":"point","step":5,"wall_time":1,"values":{"x":1,"y":"z"}}\n'
        lines[6] = b"[]\n"
        lines[7] = b'{"type":"point","step":' + b"9" * 30 + b',"wall_time":1,"values":{"x":1}}\n'
        lines[8] = b"[" * 100_000 + b"\n"
        lines[9] = b'{"type":"point","step":NaN,"wall_time":1,"values":{"x":1}}\n'
        path.write_bytes(b"".join(lines))
        history = JsonlReader().read(str(path))
        assert history.series["x"].step.tolist() == [1, 2, 4, *range(10, 21)]
        assert history.problems == ("damaged lines were left out: 4, 6, 7, 8, 9, ... (6 in all)",)

    def test_the_first_line_is_damaged(self, tmp_path: Path) -> None:
        """Without the line that describes the run its points are still read, and that is said."""
        path = record(info(tmp_path), points(1, 5))
        path.write_bytes(b"garbage\n" + path.read_bytes().split(b"\n", 1)[1])
        history = JsonlReader().read(str(path))
        assert (history.name, history.info, len(history.series["x"])) == ("run", None, 5)
        assert "the line that describes the run is missing" in history.problems

    def test_lines_of_a_later_version(self, tmp_path: Path) -> None:
        """Lines of an unknown kind are left out and named, unknown fields left out."""
        path = record(info(tmp_path), points(1, 5))
        with path.open("ab") as file:
            file.write(
                b'{"type":"trace","x":1}\n{"type":"point","step":6,"wall_time":1,"values":{"x":1},"new":2}\n'
            )
        history = JsonlReader().read(str(path))
        assert len(history.series["x"]) == 6
        assert history.problems == ("lines of a kind that this version does not know were left out: trace",)

    def test_resume(self, tmp_path: Path) -> None:
        """Killed at step 149 and resumed after 99: 200 steps, later values, 50 steps and 25 s done twice."""
        record(info(tmp_path), points(0, 149), end=False)
        path = record(info(tmp_path, resume_step=99), points(100, 199, 2.0))
        history = JsonlReader().read(str(path))
        assert history.series["x"].step.tolist() == list(range(200))
        assert history.series["x"].value[120] == 2.0
        assert (history.redone_steps, history.redone_s) == (50, 25.0)

    def test_resume_after_a_cut(self, tmp_path: Path) -> None:
        """A session that goes on after a cut line loses only that line."""
        path = record(info(tmp_path), points(1, 9), end=False)
        os.truncate(path, path.stat().st_size - 7)
        record(info(tmp_path, resume_step=5), points(8, 12, 2.0), end=False)
        history = JsonlReader().read(str(path))
        assert history.series["x"].step.tolist() == [1, 2, 3, 4, 5, 8, 9, 10, 11, 12]
        assert history.problems == ("damaged lines were left out: 10",)

    def test_a_resumed_run_has_not_ended(self, tmp_path: Path) -> None:
        """The end of an earlier session is not the end of the run."""
        record(info(tmp_path), points(1, 9))
        path = record(info(tmp_path, resume_step=9), points(10, 12), end=False)
        history = JsonlReader().read(str(path))
        assert (history.status, history.summary) == (None, None)

    def test_find(self, tmp_path: Path) -> None:
        """Runs are found at any depth in order of name; other files are not taken for runs."""
        record(info(tmp_path / "b ü", "run"), points(1, 1))
        record(info(tmp_path / "a", "run"), points(1, 1))
        (tmp_path / "dataset.jsonl").write_text('{"text": "x"}\n')
        found = JsonlReader().find(str(tmp_path))
        assert found == [str(tmp_path / "a" / "run"), str(tmp_path / "b ü" / "run")]
        assert JsonlReader().find(found[0]) == [found[0]]
        assert JsonlReader().find(str(tmp_path / "dataset.jsonl")) == []
        assert JsonlReader().find(str(tmp_path / "nowhere")) == []

    @pytest.mark.parametrize("content", [None, b"", b"\n\n", b'{"text":"x"}\n', b"\x00" * 100])
    def test_nothing_of_a_run(self, tmp_path: Path, content: bytes | None) -> None:
        """A file that is missing, empty or of something else is a `ReadError` with its path."""
        path = tmp_path / "x.jsonl"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ReadError, match=r"x\.jsonl"):
            JsonlReader().read(str(path))
