"""The fakes and the contract kit: a kit that finds no fault proves nothing, so each fault is tried."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from trackperf import testing
from trackperf.history import RunHistory, Series
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status
from trackperf.sinks.jsonl import JsonlReader, JsonlSink
from trackperf.testing import FailingSink, FakeClock, MemorySink, StallingSink, check_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INFO = RunInfo(run_id="0" * 32, name="run", dir="runs", started_at=1.7e9)


class TestFakes:
    """The fakes do what they say."""

    def test_clock(self) -> None:
        """The clock counts in nanoseconds, exactly, and does not go back."""
        clock = FakeClock(start_s=5)
        for _ in range(10):
            clock.advance(0.1)
        assert (clock(), clock.seconds()) == (6_000_000_000, 6.0)
        with pytest.raises(ValueError, match="does not go back"):
            clock.advance(-0.1)

    def test_memory(self) -> None:
        """The sink keeps what it gets, and gives a series back."""
        sink = MemorySink()
        sink.open(INFO)
        sink.write([Point(step=1, wall_time=0.0, values={"a": 1.0}), Point(step=2, wall_time=0.0, values={})])
        sink.close(RunSummary(steps=2, samples=None), Status.FAILED)
        assert sink.info is INFO
        assert (sink.series("a"), sink.series("b")) == ([(1, 1.0)], [])
        assert (sink.status, sink.closed.is_set()) == (Status.FAILED, True)

    def test_failing(self) -> None:
        """The sink fails where and as often as it is told."""
        sink = FailingSink(OSError("x"), on=["write"], times=1)
        sink.open(INFO)
        with pytest.raises(OSError, match="x"):
            sink.write([])
        sink.write([])
        assert sink.calls == ["open", "write"]

    def test_stalling(self) -> None:
        """The sink stalls until it is released."""
        sink = StallingSink(on=["open"])
        thread = threading.Thread(target=sink.open, args=(INFO,))
        thread.start()
        assert sink.stalled.wait(30)
        assert sink.calls == []
        sink.release.set()
        thread.join(30)
        assert sink.calls == ["open"]


class TestKit:
    """The kit passes what keeps the contract, and names what does not."""

    def test_a_good_sink_passes(self) -> None:
        """Sinks that keep the contract pass, with and without a reader."""
        check_sink(MemorySink)
        check_sink(JsonlSink, read=lambda run: JsonlReader().read(f"{run.dir}/{run.name}"))

    @pytest.mark.parametrize("method", ["open", "write", "alert", "close"])
    def test_a_method_that_raises(self, method: str) -> None:
        """Whatever raises is named with what it was given."""
        with pytest.raises(
            AssertionError, match=rf"'failing' must take {method}\(.*\), but it raised ValueError"
        ):
            check_sink(lambda: FailingSink(ValueError("odd"), on=[method]))

    def test_a_wrong_signature(self) -> None:
        """A method with other parameters is named."""

        class Wrong(MemorySink):
            def close(self) -> None:  # type: ignore[override]
                pass

        with pytest.raises(AssertionError, match=r"keep to the signatures .*`close` takes \(\)"):
            check_sink(Wrong)  # type: ignore[arg-type]

    def test_an_empty_batch_is_tried(self) -> None:
        """A sink that cannot take an empty batch fails."""

        class Greedy(MemorySink):
            def write(self, points: Sequence[Point]) -> None:
                self.points.append(points[0])

        with pytest.raises(AssertionError, match=r"must take write\(0 points\), but it raised IndexError"):
            check_sink(Greedy)

    def test_a_hanging_sink(self) -> None:
        """A sink that does not come back fails within the limit."""
        sinks: list[StallingSink] = []
        since = time.monotonic()

        def factory() -> StallingSink:
            sinks.append(StallingSink(on=["close"]))
            return sinks[-1]

        try:
            with pytest.raises(
                AssertionError, match=r"take a run: .*, but it did not come back within 0\.2 s"
            ):
                check_sink(factory, timeout_s=0.2)
            assert time.monotonic() - since < 10
        finally:
            for sink in sinks:
                sink.release.set()

    def test_a_thread_left_behind(self) -> None:
        """A thread that would keep the process alive fails."""
        release = threading.Event()

        class Lingering(MemorySink):
            def open(self, run: RunInfo) -> None:
                threading.Thread(target=release.wait, name="lingering", daemon=False).start()

        try:
            with pytest.raises(AssertionError, match=r"leave no thread .*lingering"):
                check_sink(Lingering)
        finally:
            release.set()

    def test_a_second_sink_must_work(self) -> None:
        """A sink that works once in a process fails."""
        used: list[str] = []

        class Once(MemorySink):
            def open(self, run: RunInfo) -> None:
                if used and run.name == used[0] and run.resume_step is None and len(used) > 2:
                    raise RuntimeError("already active")
                used.append(run.name)

        with pytest.raises(AssertionError, match=r"must take open\(RunInfo\), but it raised RuntimeError"):
            check_sink(Once)

    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (
                lambda points: points[1:],
                r"store '.*' as written, but 1 of 50 steps are missing, the first is 10",
            ),
            (
                lambda points: [
                    Point(step=p.step, wall_time=0.0, values={**p.values, "x": 1.0}) for p in points
                ],
                r"store no series that was not written, but it stored \['x'\]",
            ),
            (
                lambda points: [
                    Point(step=p.step, wall_time=0.0, values={k: v + 1 for k, v in p.values.items()})
                    for p in points
                ],
                r"at step 10 it stored 304\.0 for 303\.0",
            ),
            (
                lambda points: [
                    Point(
                        step=p.step,
                        wall_time=0.0,
                        values={k: v for k, v in p.values.items() if k != "perf/step_ms"},
                    )
                    for p in points
                ],
                r"store every series, but these are missing: \['perf/step_ms'\]",
            ),
        ],
    )
    def test_what_is_stored_is_compared(self, spoil: Callable[[list[Point]], list[Point]], said: str) -> None:
        """With a reader, points that are lost, added or changed are named."""
        with pytest.raises(AssertionError, match=said):
            check_sink(MemorySink, read=lambda _: history_of(spoil(WRITTEN)))

    def test_alerts_and_status_are_compared(self) -> None:
        """With a reader, lost alerts and a lost status are named."""
        with pytest.raises(AssertionError, match=r"store the alerts \[\('loader_latency'"):
            check_sink(MemorySink, read=lambda _: history_of(WRITTEN))

        class NoEnd(JsonlSink):
            def close(self, summary: RunSummary, status: Status) -> None:
                super().close(summary, Status.FINISHED)

        with pytest.raises(AssertionError, match=r"store the status Status\.FAILED"):
            check_sink(NoEnd, read=lambda run: JsonlReader().read(f"{run.dir}/{run.name}"))

    def test_a_resume_that_keeps_both_is_found(self) -> None:
        """A sink that forgets where a resumed run goes on from fails."""

        class Forgetful(JsonlSink):
            def open(self, run: RunInfo) -> None:
                super().open(run)
                path = Path(run.dir) / run.name / "trackperf.jsonl"
                path.write_bytes(path.read_bytes().replace(b'"resume_step":100', b'"resume_step":null'))

        with pytest.raises(AssertionError, match=r"as written, but it stored 5 steps|at step \d+ it stored"):
            check_sink(Forgetful, read=lambda run: JsonlReader().read(f"{run.dir}/{run.name}"))

    def test_everything_public_is_here(self) -> None:
        """`__all__` names what the module offers."""
        assert set(testing.__all__) == {
            "AwaySink",
            "FailingSink",
            "FakeClock",
            "MemorySink",
            "StallingSink",
            "check_sink",
        }


WRITTEN = [
    Point(
        step=step,
        wall_time=0.0,
        values={
            "perf/samples_per_s": 300.0 + step % 7,
            "perf/step_ms": 12.5,
            "perf/train_s": step / 8,
            "perf_alert/active": 0.0,
        },
    )
    for step in range(10, 510, 10)
]


def history_of(points: list[Point], alerts: tuple[Alert, ...] = ()) -> RunHistory:
    """Return a run of points as a reader would."""
    keys = {key for point in points for key in point.values}
    found = {
        key: [(point.step, point.values[key]) for point in points if key in point.values]
        for key in sorted(keys)
    }
    series = {
        key: Series(
            step=np.array([step for step, _ in pairs], dtype=np.int64),
            wall_time=np.zeros(len(pairs)),
            value=np.array([value for _, value in pairs]),
        )
        for key, pairs in found.items()
    }
    return RunHistory(name="run", source="x", series=series, alerts=alerts, status=Status.FINISHED)
