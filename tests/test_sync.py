"""`trackperf sync`: what waits arrives, once and in order, and what cannot is said."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from spool_parts import FINISHED, SUMMARY, Tracker, alert, info, point, points

from trackperf.delivery.queue import End
from trackperf.delivery.spool import Spool
from trackperf.errand import points_of
from trackperf.errors import ReadError, SinkError
from trackperf.record import Point, RunInfo, RunSummary, Status
from trackperf.registry import read_run
from trackperf.sinks.jsonl import JsonlSink
from trackperf.sync import sync
from trackperf.testing import AwaySink, MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trackperf.sink import Sink


@pytest.fixture
def sinks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Sink]:
    """Give a table of the sinks that `sync` finds by name."""
    table: dict[str, Sink] = {}

    def load(name: str) -> Sink:
        if name not in table:
            raise SinkError(f"there is no sink {name!r}")
        return table[name]

    monkeypatch.setattr("trackperf.sync.load_sink", load)
    return table


def left(
    folder: Path,
    steps: Sequence[int],
    *,
    name: str = "run",
    end: End | None = None,
    address: dict[str, str] | None = None,
    resume_step: int | None = None,
) -> Spool:
    """Leave a spool as a process would."""
    spool = Spool.create("away", info(folder, name, resume_step=resume_step), address or {})
    if steps:
        spool.append(points(steps))
        spool.append(alert(steps[-1]))
    if end:
        spool.append(end)
    spool.close()
    return spool


END = End(summary=SUMMARY, status=Status.FAILED)


class TestOwn:
    """To the tracker that it was meant for."""

    def test_everything_arrives_and_goes(self, tmp_path: Path, sinks: dict[str, Sink]) -> None:
        """A run that came to its end arrives with its summary and status, and the spool goes."""
        sinks["away"] = sink = AwaySink(away=False)
        left(tmp_path, range(2500), end=END, address={"server": "a", "run": "b"})
        told: list[tuple[str, int, int]] = []
        (sent,) = sync(str(tmp_path), tell=lambda *what: told.append(what))
        assert [p.step for p in sink.points] == list(range(2500))
        assert (sink.rejoined, sink.summary, sink.status) == (
            {"server": "a", "run": "b"},
            SUMMARY,
            Status.FAILED,
        )
        assert (sink.calls[0], sink.calls[-2:], sink.alerts) == ("open", ["alert", "close"], [alert(2499)])
        assert (sent.run, sent.sent, sent.waiting, sent.remains) == ("run", 2500, 0, False)
        assert told[-1] == ("run", 2500, 2500)
        assert list(tmp_path.iterdir()) == []
        assert sync(str(tmp_path)) == []

    def test_a_killed_run_is_closed_as_killed(self, tmp_path: Path, sinks: dict[str, Sink]) -> None:
        """A run without an end is closed with what is known, steps, alerts, phases, and no guess."""
        sinks["away"] = sink = AwaySink(away=False)
        left(tmp_path, range(1, 31))
        assert not any(sent.remains for sent in sync(str(tmp_path)))
        assert sink.status == Status.KILLED
        assert sink.summary == RunSummary(steps=30, samples=None, phases={"train": 10.0}, alerts=(alert(30),))

    def test_a_tracker_that_is_still_away(self, tmp_path: Path, sinks: dict[str, Sink]) -> None:
        """Three tries, and then all waits on; another run's tracker is served all the same."""
        sinks["away"] = AwaySink()
        waited: list[float] = []
        left(tmp_path, range(5), end=END)
        other = Spool.create("there", info(tmp_path, "other"), {})
        other.append(points([1]))
        other.close()
        sinks["there"] = there = AwaySink(away=False, name="there")
        rows = {sent.sink: sent for sent in sync(str(tmp_path), sleep=waited.append)}
        assert (rows["away"].waiting, rows["away"].remains) == (5, True)
        assert "nobody answers" in rows["away"].note
        assert (len(there.points), len(waited)) == (1, 2)

    def test_half_way(self, tmp_path: Path, sinks: dict[str, Sink]) -> None:
        """What arrived before the tracker went away does not come again with the next call."""

        class Tiring(AwaySink):
            def write(self, points: Sequence[Point]) -> None:
                super().write(points)
                self.away = len(self.points) == 1000

        sinks["away"] = sink = Tiring(away=False)
        left(tmp_path, range(2500), end=END)
        (sent,) = sync(str(tmp_path), sleep=lambda seconds: None)
        assert (sent.sent, sent.waiting, sink.status) == (1000, 1500, None)
        sink.away = False
        (sent,) = sync(str(tmp_path))
        assert (sent.sent, sent.remains, sink.rejoined) == (1500, False, {"run_id": info(tmp_path).run_id})
        assert [p.step for p in sink.points] == list(range(2500))

    def test_one_that_is_held(self, tmp_path: Path, sinks: dict[str, Sink]) -> None:
        """The spool of a live process is left alone, and said to be held."""
        sinks["away"] = sink = AwaySink(away=False)
        spool = Spool.create("away", info(tmp_path), {})
        spool.append(points([1]))
        (sent,) = sync(str(tmp_path))
        assert (sent.remains, sent.waiting, sink.calls) == (True, None, [])
        assert sent.note.startswith("a live process has it")
        spool.close()

    def test_two_processes_of_one_run(self, tmp_path: Path, sinks: dict[str, Sink]) -> None:
        """Parts of a resumed run go in order as one run; steps that were done again come once."""
        sinks["away"] = sink = AwaySink(away=False)
        left(tmp_path, range(1, 31))
        left(tmp_path, range(21, 41), resume_step=20, end=END)
        (sent,) = sync(str(tmp_path))
        assert [p.step for p in sink.points] == list(range(1, 41))
        assert (sink.calls.count("open"), sink.calls.count("close"), sink.status) == (1, 1, Status.FAILED)
        assert not sent.remains
        assert list(tmp_path.iterdir()) == []

    def test_bad_ones_are_rows(self, tmp_path: Path, sinks: dict[str, Sink]) -> None:
        """A damaged spool and one whose sink is not installed are told, each in a row, and stop nothing."""
        sinks["away"] = AwaySink(away=False)
        left(tmp_path, [1], end=END, name="good")
        left(tmp_path, [1], end=END, name="bad")
        (tmp_path / "bad" / "spool-away" / "spool.json").write_text("{")
        lost = Spool.create("foreign", info(tmp_path, "far"), {})
        lost.append(points([1, 2]))
        lost.close()
        rows = {sent.run: sent for sent in sync(str(tmp_path))}
        assert (rows["good"].remains, rows["bad"].remains, rows["far"].remains) == (False, True, True)
        assert "is damaged" in rows["bad"].note
        assert (rows["far"].waiting, rows["far"].note) == (2, "there is no sink 'foreign'")

    def test_refused_points_are_counted(self, tmp_path: Path, sinks: dict[str, Sink]) -> None:
        """Points that the tracker refuses are counted, and why."""

        class Picky(AwaySink):
            def write(self, points: Sequence[Point]) -> None:
                if any(p.step == 3 for p in points):
                    raise ValueError("bad name")
                super().write(points)

        sinks["away"] = Picky(away=False)
        left(tmp_path, range(10), end=END)
        (sent,) = sync(str(tmp_path))
        assert (sent.sent, sent.lost, sent.waiting, sent.remains) == (9, 1, 0, False)
        assert "bad name" in sent.note


class TestTo:
    """Into another tracker."""

    def test_a_spool_stays_as_it_is(self, tmp_path: Path, sinks: dict[str, Sink]) -> None:
        """`to` sends what waits as a new run and changes nothing on disk."""
        sinks["memory"] = sink = MemorySink()
        left(tmp_path, range(21, 31), end=END, address={"server": "a"}, resume_step=20)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        (sent,) = sync(str(tmp_path), to="memory")
        assert [p.step for p in sink.points] == list(range(21, 31))
        assert sink.info is not None
        assert (sink.info.resume_step, sink.status, sent.sink) == (None, Status.FAILED, "memory")
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before

    @pytest.mark.parametrize("kind", ["jsonl", "tensorboard"])
    def test_a_local_run(self, tmp_path: Path, sinks: dict[str, Sink], kind: str) -> None:
        """A run in local files arrives whole: points, alerts in their place, description, summary, status."""
        from trackperf_tensorboard import TensorBoardSink

        made: Callable[[], Sink] = JsonlSink if kind == "jsonl" else TensorBoardSink
        writer = made()
        writer.open(info(tmp_path))
        writer.write([*points(range(1, 6)), point(6, 0.5), *points(range(7, 10))])
        writer.alert(alert(5))
        writer.close(RunSummary(steps=9, samples=72), Status.FAILED)
        left(tmp_path, range(3), end=END)
        sinks["memory"] = sink = MemorySink()
        (sent,) = sync(str(tmp_path), to="memory")
        assert (sent.sent, sent.waiting, sent.remains) == (9, 0, False)
        assert [p.step for p in sink.points] == list(range(1, 10))
        assert sink.points[5].values["val/loss"] == 0.5
        assert sink.points[4].values["perf/step_ms"] == pytest.approx(5.1)
        assert sink.calls == ["open", "write", "alert", "write", "close"]
        assert (len(sink.points), sink.batches) == (9, [5, 4])
        assert (sink.summary, sink.status) == (RunSummary(steps=9, samples=72), Status.FAILED)
        assert sink.info is not None
        assert (sink.info.run_id, sink.info.dir) == (info(tmp_path).run_id, str(tmp_path))

    def test_a_local_run_without_an_end(self, tmp_path: Path, sinks: dict[str, Sink]) -> None:
        """A run that was killed is closed as such when it is moved; with the tracker away it waits."""
        writer = JsonlSink()
        writer.open(info(tmp_path))
        writer.write(points(range(1, 4)))
        assert writer._file is not None
        writer._file.close()
        sinks["memory"] = sink = AwaySink(name="memory")
        (sent,) = sync(str(tmp_path), to="memory", sleep=lambda seconds: None)
        assert (sent.waiting, sent.remains) == (3, True)
        sink.away = False
        sync(f"jsonl:{tmp_path / 'run'}", to="memory")
        assert (sink.status, sink.summary) == (
            Status.KILLED,
            RunSummary(steps=3, samples=None, phases={"train": 1.0}),
        )

    def test_points_of_a_history(self, tmp_path: Path) -> None:
        """Values of one step and time are one point; others at the same step stay apart."""
        sink, both = JsonlSink(), [point(1), Point(step=1, wall_time=5.0, values={"val/loss": 1.0}), point(2)]
        sink.open(info(tmp_path))
        sink.write(both)
        sink.close(SUMMARY, FINISHED)
        assert points_of(read_run(f"jsonl:{tmp_path / 'run'}")) == [both[1], both[0], both[2]]


class TestCommand:
    """As a person calls it."""

    def test_it_says_what_was_sent_and_what_remains(self, tmp_path: Path) -> None:
        """A table and the exit status: 1 while the tracker is away, 0 when all has arrived."""
        tracker = Tracker(tmp_path)
        tracker.run("""
            from filetracker import FileTracker
            delivery = Delivery([FileTracker()])
            delivery.start()
            delivery.open(info())
            for step in range(1, 8):
                delivery.write(point(step))
            delivery.close(SUMMARY, Status.FAILED, 0.3)
        """)
        assert len(tracker.spools()) == 1
        away = tracker.command("sync")
        assert away.returncode == 1
        assert re.search(r"run +filetracker +0 +0 +7 +open: nobody answers", away.stdout)
        tracker.up()
        done = tracker.command("sync", "runs", "--json")
        assert done.returncode == 0, done.stderr
        assert [(row["sent"], row["remains"]) for row in json.loads(done.stdout)] == [(7, False)]
        assert tracker.steps() == list(range(1, 8))
        assert tracker.notes()[-1]["close"] == "failed"
        nothing = tracker.command("sync")
        assert (nothing.returncode, nothing.stdout) == (0, "Nothing waits at runs.\n")

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["nowhere"], "there is no folder 'nowhere'"),
            ([".", "--to", "tensorbord"], "Did you mean 'tensorboard'?"),
            (["jsonl:nowhere", "--to", "tensorboard"], "no run"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, words: list[str], said: str) -> None:
        """A mistake is one message, without a traceback, and status 2."""
        out = Tracker(tmp_path).command("sync", *words)
        assert out.returncode == 2
        assert out.stderr.startswith("error: ")
        assert said in out.stderr
        assert "Traceback" not in out.stderr

    def test_from_one_tracker_s_files_to_another_s(self, tmp_path: Path) -> None:
        """`--to tensorboard` writes a JSON-lines run as a TensorBoard run that reads back the same."""
        sink = JsonlSink()
        sink.open(info(tmp_path / "runs"))
        sink.write(points(range(1, 20)))
        sink.close(SUMMARY, FINISHED)
        out = Tracker(tmp_path).command("sync", "runs", "--to", "tensorboard")
        assert out.returncode == 0, out.stdout + out.stderr
        moved = read_run(f"tensorboard:{tmp_path / 'runs' / 'run'}")
        assert moved.series["perf/step_ms"].step.tolist() == list(range(1, 20))
        assert moved.status == FINISHED


def test_a_description_moves_with_its_folder(tmp_path: Path, sinks: dict[str, Sink]) -> None:
    """A folder of runs that was moved is what the sink is told, not the place where it was written."""
    sinks["away"] = sink = AwaySink(away=False)
    left(tmp_path / "old", [1], end=END)
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(ReadError, match="there is no folder"):
        sync(str(tmp_path / "old"))
    sync(str(tmp_path / "new"))
    assert isinstance(sink.info, RunInfo)
    assert sink.info.dir == str(tmp_path / "new")
