"""Delivery to trackers that are away, hang, refuse: what arrives, what waits, and what it costs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delivery_parts import LONG_S, open_files
from spool_parts import FINISHED, SUMMARY, alert, info, point

from trackperf.delivery import Delivery
from trackperf.delivery.spool import Spool
from trackperf.errors import UnavailableError
from trackperf.record import Point, RunInfo, Status
from trackperf.testing import AwaySink, MemorySink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackperf.record import RunSummary
    from trackperf.sink import Sink


class Hanging(AwaySink):
    """A tracker that takes a call and does not answer until it is let go."""

    def __init__(self, name: str = "hanging") -> None:
        super().__init__(away=False, name=name)
        self.release = threading.Event()

    def write(self, points: Sequence[Point]) -> None:
        """Wait, then keep the points."""
        self.tried.set()
        self.release.wait()
        super().write(points)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    """Give a tracker that hangs, and let it go at the end."""
    sink = Hanging()
    yield sink
    sink.release.set()


def started(folder: Path, *sinks: Sink, name: str = "run") -> Delivery:
    """Return a delivery that has been started and opened."""
    delivery = Delivery(sinks)
    delivery.start()
    delivery.open(info(folder, name))
    return delivery


def spooled(folder: Path) -> list[int]:
    """Return the steps of the points that wait below a folder."""
    steps: list[int] = []
    for path in sorted(folder.glob("*/spool-*/spool.json")):
        spool = Spool.take_over(path.parent, keep=True)
        assert spool is not None
        while parcel := spool.take(1000):
            steps += [item.step for item in parcel.items if isinstance(item, Point)]
        spool.close()
    return steps


def settled_threads(sink: str = "away") -> list[str]:
    """Return the threads for a sink that do not end."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith(f"trackperf-{sink}")]
    for thread in ours:
        thread.join(LONG_S)
    return [thread.name for thread in ours if thread.is_alive()]


class TestArrival:
    """Everything, once, in order."""

    def test_a_tracker_that_is_there(self, tmp_path: Path) -> None:
        """A run arrives whole and in order, and leaves no file, no folder, no thread and no handle."""
        before, sink = open_files(), AwaySink(away=False)
        delivery = started(tmp_path, sink)
        for step in range(3000):
            delivery.write(point(step))
            if step == 1500:
                delivery.alert(alert(step))
        delivery.close(SUMMARY, Status.FAILED)
        assert [p.step for p in sink.points] == list(range(3000))
        assert [p.values for p in sink.points] == [point(step).values for step in range(3000)]
        assert sum(sink.batches[: sink.calls.index("alert") - 1]) == 1501
        assert (sink.info, sink.summary, sink.status) == (info(tmp_path), SUMMARY, Status.FAILED)
        assert (list(tmp_path.iterdir()), settled_threads(), open_files()) == ([], [], before)
        assert not delivery.dropped

    def test_a_tracker_that_comes_back(self, tmp_path: Path) -> None:
        """What was written while the tracker was away arrives when it is back, in order."""
        sink = AwaySink()
        delivery = started(tmp_path, sink)
        for step in range(500):
            delivery.write(point(step))
        assert sink.tried.wait(LONG_S)
        sink.away = False
        delivery.close(SUMMARY, FINISHED)
        assert [p.step for p in sink.points] == list(range(500))
        assert (sink.calls[0], sink.calls[-1], list(tmp_path.iterdir())) == ("open", "close", [])

    def test_the_end_cuts_a_long_wait_short(self, tmp_path: Path) -> None:
        """In the midst of a wait of half a minute the end tries again at once, and finds the tracker back."""
        sink = AwaySink()
        delivery = Delivery([sink])
        delivery._spooled[0]._courier.backoff.failures = 10
        delivery.start()
        delivery.open(info(tmp_path))
        delivery.write(point(1))
        assert not delivery.flush(LONG_S)
        sink.away = False
        delivery.close(SUMMARY, FINISHED)
        assert (len(sink.points), sink.status, list(tmp_path.iterdir())) == (1, FINISHED, [])

    def test_one_that_hangs_is_alone(self, tmp_path: Path, hanging: Hanging) -> None:
        """Beside a tracker that hangs another one, and a local sink, have everything at once."""
        remote, local = AwaySink(away=False), MemorySink()
        delivery = started(tmp_path, hanging, remote, local)
        delivery.write(point(1))
        assert hanging.tried.wait(LONG_S)
        for step in range(2, 100):
            delivery.write(point(step))
        delivery.close(SUMMARY, FINISHED, timeout_s=0.5)
        assert len(remote.points) == len(local.points) == 99
        assert (remote.status, local.status, hanging.status) == (FINISHED, FINISHED, None)

    def test_the_address_is_kept(self, tmp_path: Path) -> None:
        """Where the run is in its tracker stands in the spool as soon as the tracker told it."""
        sink = Hanging()
        delivery = started(tmp_path, sink)
        delivery.write(point(1))
        assert sink.tried.wait(LONG_S)
        assert (
            f'"address": {{"run_id": "{info(tmp_path).run_id}"}}'
            in (tmp_path / "run" / "spool-hanging" / "spool.json").read_text()
        )
        sink.release.set()
        delivery.close(SUMMARY, FINISHED)

    def test_a_resumed_run_sends_what_was_left_first(self, tmp_path: Path) -> None:
        """The next process of a run sends what the first one left, up to the step that it took over at."""
        first = started(tmp_path, AwaySink())
        for step in range(50):
            first.write(point(step))
        first.close(SUMMARY, Status.KILLED, timeout_s=0.2)
        assert spooled(tmp_path) == list(range(50))
        sink = AwaySink(away=False)
        second = Delivery([sink])
        second.start()
        second.open(info(tmp_path, resume_step=39))
        second.write(point(40))
        second.close(SUMMARY, FINISHED)
        assert [p.step for p in sink.points] == list(range(41))
        assert (sink.calls.count("open"), sink.calls.count("close")) == (1, 1)
        assert list(tmp_path.iterdir()) == []

    def test_flush(self, tmp_path: Path, hanging: Hanging) -> None:
        """`flush` waits for the tracker; for one that is away it says at once that it has not got it."""
        sink = AwaySink(away=False)
        delivery = started(tmp_path, sink)
        delivery.write(point(1))
        assert delivery.flush(LONG_S)
        assert len(sink.points) == 1
        sink.away = True
        delivery.write(point(2))
        assert sink.tried.wait(LONG_S)
        since = time.monotonic()
        assert not delivery.flush(LONG_S)
        assert time.monotonic() - since < LONG_S / 2
        sink.away = False
        delivery.close(SUMMARY, FINISHED)
        assert delivery.flush(1.0)
        other = started(tmp_path, hanging, name="other")
        other.write(point(1))
        assert not other.flush(0.1)
        other.close(SUMMARY, FINISHED, timeout_s=0.1)


class TestEnd:
    """What a run's end costs, and what remains."""

    def test_a_dead_tracker(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """With a dead tracker `close` keeps its limit; all waits on disk, and one line says so."""
        sink = AwaySink()
        delivery = started(tmp_path, sink)
        for step in range(100):
            delivery.write(point(step))
        assert sink.tried.wait(LONG_S)
        since = time.monotonic()
        with caplog.at_level(logging.WARNING, "trackperf"):
            delivery.close(SUMMARY, FINISHED, timeout_s=1.0)
        assert time.monotonic() - since < 5.0
        told = [record.getMessage() for record in caplog.records if "trackperf sync" in record.getMessage()]
        assert len(told) == 1
        assert re.search(r"100 points wait in .*/run/spool-away \(.*nobody answers\)", told[0])
        assert told[0].endswith(f"trackperf sync {tmp_path / 'run'}")
        assert spooled(tmp_path) == list(range(100))
        assert (delivery.dropped, settled_threads()) == ({}, [])

    def test_a_tracker_that_asks_for_more_than_there_is(self, tmp_path: Path) -> None:
        """When it asks to wait longer than the end may last, the end does not wait at all."""
        sink = AwaySink(retry_after_s=30.0)
        delivery = started(tmp_path, sink)
        delivery.write(point(1))
        assert sink.tried.wait(LONG_S)
        since = time.monotonic()
        delivery.close(SUMMARY, FINISHED, timeout_s=20.0)
        assert time.monotonic() - since < 10.0
        assert spooled(tmp_path) == [1]

    def test_a_tracker_that_hangs(
        self, tmp_path: Path, hanging: Hanging, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A call that does not come back costs the limit; what it was handed waits on disk as well."""
        delivery = started(tmp_path, hanging)
        delivery.write(point(1))
        assert hanging.tried.wait(LONG_S)
        delivery.write(point(2))
        since = time.monotonic()
        delivery.close(SUMMARY, FINISHED, timeout_s=0.5)
        assert time.monotonic() - since < 4.5
        assert "2 points wait" in caplog.text
        assert "it did not come back from write within 0.5 s" in caplog.text
        hanging.release.set()

    def test_a_run_without_a_word(self, tmp_path: Path) -> None:
        """A delivery that never opened ends at once and leaves nothing."""
        delivery = Delivery([AwaySink()])
        delivery.start()
        since = time.monotonic()
        delivery.close(SUMMARY, FINISHED, timeout_s=20.0)
        assert time.monotonic() - since < 10.0
        assert (settled_threads(), list(tmp_path.iterdir())) == ([], [])

    def test_a_refused_open_keeps_all(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A tracker that refuses the run is not asked again; every point waits on disk."""

        class Closed(AwaySink):
            def open(self, run: RunInfo) -> None:
                self.calls.append("open")
                raise PermissionError("no such project")

        sink = Closed()
        delivery = started(tmp_path, sink)
        for step in range(20):
            delivery.write(point(step))
        delivery.close(SUMMARY, FINISHED)
        assert (sink.calls, spooled(tmp_path), delivery.dropped) == (["open"], list(range(20)), {})
        assert "no such project" in caplog.text
        assert "20 points wait" in caplog.text

    def test_refused_points_are_counted(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Points that the tracker refuses are in `dropped`, and the end says how many and why."""

        class Picky(AwaySink):
            def write(self, points: Sequence[Point]) -> None:
                if any(p.step in (3, 70) for p in points):
                    raise ValueError("bad name")
                super().write(points)

        sink = Picky(away=False)
        delivery = started(tmp_path, sink)
        for step in range(100):
            delivery.write(point(step))
        delivery.close(SUMMARY, FINISHED)
        assert (len(sink.points), delivery.dropped, delivery.dropped_points) == (98, {"points/away": 2}, 2)
        assert "not delivered: 2 points" in caplog.text
        assert "bad name" in caplog.text
        assert list(tmp_path.iterdir()) == []


class TestWithoutDisk:
    """Where nothing can be kept."""

    def test_no_folder_can_be_made(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """With a file in the folder's place all goes straight to the tracker, after one warning."""
        (tmp_path / "run").touch()
        sink = AwaySink(away=False)
        delivery = started(tmp_path, sink)
        for step in range(200):
            delivery.write(point(step))
        delivery.alert(alert(7))
        delivery.close(SUMMARY, FINISHED)
        assert [p.step for p in sink.points] == list(range(200))
        assert (sink.calls[-1], len(sink.alerts), delivery.dropped) == ("close", 1, {})
        assert caplog.text.count("nothing can be kept on disk") == 1

    def test_and_the_tracker_is_dead(self, tmp_path: Path) -> None:
        """Without a disk and without a tracker the queue holds what it may, and the rest is counted."""
        (tmp_path / "run").touch()
        sink = AwaySink()
        delivery = Delivery([sink], max_bytes=20_000)
        delivery.start()
        delivery.open(info(tmp_path))
        for step in range(500):
            delivery.write(point(step))
        delivery.close(SUMMARY, FINISHED, timeout_s=0.5)
        assert (sink.points, delivery.dropped) == ([], {"points/away": 500})

    def test_a_disk_that_fills_and_empties(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is on disk comes first, then what did not fit; with room again the disk takes over."""
        sink = AwaySink()
        delivery = started(tmp_path, sink)
        for step in range(10):
            delivery.write(point(step))
        assert not delivery.flush(LONG_S)
        write, full, refused = os.write, threading.Event(), threading.Event()
        full.set()

        def limited(fd: int, data: bytes) -> int:
            if full.is_set():
                refused.set()
                raise OSError(28, "No space left on device")
            return write(fd, data)

        monkeypatch.setattr("trackperf.delivery.segments.os.write", limited)
        for step in range(10, 20):
            delivery.write(point(step))
        assert refused.wait(LONG_S)
        sink.away = False
        assert delivery.flush(LONG_S) or delivery.flush(LONG_S)
        full.clear()
        for step in range(20, 30):
            delivery.write(point(step))
        delivery.close(SUMMARY, FINISHED)
        assert [p.step for p in sink.points] == list(range(30))
        assert not delivery.dropped


class TestCompany:
    """Several at once, again and again, and forked."""

    def test_two_at_once(self, tmp_path: Path) -> None:
        """Two runs at the same time, of one name even, do not meet."""
        sinks = [AwaySink(away=False), AwaySink()]
        both = [started(tmp_path, sink) for sink in sinks]
        for step in range(200):
            for delivery in both:
                delivery.write(point(step))
        assert sinks[1].tried.wait(LONG_S)
        sinks[1].away = False
        for delivery in both:
            delivery.close(SUMMARY, FINISHED)
        assert [[p.step for p in sink.points] for sink in sinks] == [list(range(200))] * 2
        assert list(tmp_path.iterdir()) == []

    def test_two_hundred_runs(self, tmp_path: Path) -> None:
        """200 runs one after the other leave no thread, no file and no handle."""
        before = open_files()
        for number in range(200):
            sink = AwaySink(away=False)
            delivery = started(tmp_path, sink, name=f"run-{number}")
            delivery.write(point(number))
            delivery.close(SUMMARY, FINISHED)
            assert (len(sink.points), sink.status) == (1, FINISHED)
        assert (settled_threads(), list(tmp_path.iterdir())) == ([], [])
        assert open_files() <= before + 1

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="forking is what is tested")
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_forked_child_leaves_the_spool_alone(self, tmp_path: Path) -> None:
        """A child neither sends nor writes, lets go of the spool's files, and does not free its lock."""
        sink = AwaySink()
        delivery = started(tmp_path, sink)
        delivery.write(point(1))
        assert not delivery.flush(LONG_S)
        folder = tmp_path / "run" / "spool-away"
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                delivery.write(point(2))
                delivery.close(SUMMARY, FINISHED)
                os._exit(int(any(str(folder) in path for path in _open_paths())))
            os._exit(9)
        assert os.waitpid(child, 0)[1] == 0
        assert Spool.take_over(folder) is None
        sink.away = False
        delivery.close(SUMMARY, FINISHED)
        assert [p.step for p in sink.points] == [1]


def _open_paths() -> list[str]:
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(path.readlink()))
    return found


def test_a_late_answer_is_not_lost(tmp_path: Path, hanging: Hanging) -> None:
    """A call that comes back after the end still counts: the spool holds only what the tracker has not."""
    delivery = started(tmp_path, hanging)
    delivery.write(point(1))
    assert hanging.tried.wait(LONG_S)
    delivery.write(point(2))
    delivery.close(SUMMARY, FINISHED, timeout_s=0.2)
    hanging.release.set()
    assert settled_threads(hanging.name) == []
    assert ([p.step for p in hanging.points], spooled(tmp_path)) == ([1], [2])


def test_a_tracker_raises_on_the_sender_alone(tmp_path: Path) -> None:
    """`close` of a sink that is away for good never raises, and says nothing twice when called again."""

    class Gone(AwaySink):
        def close(self, summary: RunSummary, status: Status) -> None:
            raise UnavailableError("gone")

    delivery = started(tmp_path, Gone(away=False))
    delivery.write(point(1))
    delivery.close(SUMMARY, FINISHED, timeout_s=0.3)
    delivery.close(SUMMARY, FINISHED, timeout_s=0.3)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["spool-away"]
