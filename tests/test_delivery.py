"""Delivery: order, and sinks that raise."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest
from delivery_parts import FINISHED, INFO, LONG_S, SUMMARY, alert, point, started

from trackperf.delivery import Delivery
from trackperf.testing import FailingSink, FakeClock, MemorySink, StallingSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackperf.record import Point, RunInfo


@pytest.fixture
def stalling() -> Iterator[StallingSink]:
    """Give a sink that stalls in write, and let it go at the end."""
    sink = StallingSink()
    yield sink
    sink.release.set()


class TestOrder:
    """What arrives, and in which order."""

    def test_everything_arrives_in_order(self) -> None:
        """A sink is opened first, gets points and alerts as they were given, and is closed last."""
        sink = MemorySink()
        delivery = started(sink)
        for step in range(100):
            delivery.write(point(step))
            if step == 50:
                delivery.alert(alert(step))
        delivery.close(SUMMARY, FINISHED)
        assert [p.step for p in sink.points] == list(range(100))
        assert (sink.calls[0], sink.calls[-1], sink.calls.count("alert")) == ("open", "close", 1)
        written_before_alert = sum(sink.batches[: sink.calls.index("alert") - 1])
        assert written_before_alert == 51
        assert (sink.info, sink.summary, sink.status) == (INFO, SUMMARY, FINISHED)
        assert not delivery.dropped

    def test_waiting_points_go_out_in_batches(self, stalling: StallingSink) -> None:
        """A sink that falls behind gets up to 1000 points at once, and alerts in their place."""
        delivery = started(stalling)
        delivery.write(point(0))
        assert stalling.stalled.wait(LONG_S)
        for step in range(1, 2501):
            delivery.write(point(step))
        delivery.alert(alert(2500))
        delivery.write(point(2501))
        stalling.release.set()
        delivery.close(SUMMARY, FINISHED)
        assert stalling.batches == [1, 1000, 1000, 500, 1]
        assert stalling.calls[-3:] == ["alert", "write", "close"]

    def test_each_sink_has_a_named_daemon_thread(self) -> None:
        """Every sink is called on one daemon thread of its own, named after it."""
        seen: list[threading.Thread] = []

        class Noting(MemorySink):
            def open(self, run: RunInfo) -> None:
                seen.append(threading.current_thread())

            def write(self, points: Sequence[Point]) -> None:
                seen.append(threading.current_thread())

        delivery = started(Noting("one"), Noting("two"))
        delivery.write(point(1))
        delivery.close(SUMMARY, FINISHED)
        assert sorted({t.name for t in seen}) == ["trackperf-one", "trackperf-two"]
        assert len(set(seen)) == 2
        assert all(t.daemon for t in seen)

    def test_flush_waits_for_all_given_so_far(self, stalling: StallingSink) -> None:
        """`flush` is True once every sink has everything, and False when a sink is still at it."""
        quick = MemorySink()
        delivery = started(quick, stalling)
        assert delivery.flush(LONG_S)
        delivery.write(point(1))
        assert not delivery.flush(0.05)
        assert quick.series("perf/step_ms") == [(1, 1.0)]
        stalling.release.set()
        assert delivery.flush(LONG_S)
        assert stalling.series("perf/step_ms") == [(1, 1.0)]
        delivery.close(SUMMARY, FINISHED)
        assert delivery.flush(0)

    def test_no_sinks_at_all(self) -> None:
        """Nothing to deliver to is fine."""
        delivery = started()
        delivery.write(point(1))
        assert delivery.flush(1.0)
        delivery.close(SUMMARY, FINISHED)
        assert (delivery.dropped_points, dict(delivery.dropped)) == (0, {})


class TestFailure:
    """A sink that raises."""

    def test_other_sinks_get_everything(self, caplog: pytest.LogCaptureFixture) -> None:
        """A failing sink costs its own points, which are counted, and nobody else's."""
        bad, good = FailingSink(OSError(28, "No space left on device")), MemorySink()
        delivery = started(bad, good)
        for step in range(20):
            delivery.write(point(step))
        delivery.close(SUMMARY, FINISHED)
        assert len(good.points) == 20
        assert dict(delivery.dropped) == {"points/failing": 20}
        assert delivery.dropped_points == 20
        assert "sink failing: 20 points were not delivered" in caplog.messages[-1]
        assert "No space left on device" in caplog.messages[-1]

    def test_first_warning_has_the_traceback(self, caplog: pytest.LogCaptureFixture) -> None:
        """The first failure is told with its traceback, the next within a minute are not told."""
        sink = FailingSink(ValueError("odd"), times=3)
        delivery = started(sink)
        for step in range(3):
            delivery.write(point(step))
            assert delivery.flush(LONG_S)
        delivery.write(point(3))
        assert delivery.flush(LONG_S)
        assert [r.exc_info is not None for r in caplog.records] == [True]
        assert "write failed: ValueError: odd" in caplog.messages[0]
        delivery.close(SUMMARY, FINISHED)
        assert dict(delivery.dropped) == {"points/failing": 3}
        assert [p.step for p in sink.points] == [3]

    def test_warnings_are_a_minute_apart(self, caplog: pytest.LogCaptureFixture) -> None:
        """A sink that goes on failing now and then is told of again after a minute."""
        clock = FakeClock()
        sink = FailingSink(ValueError("odd"))
        delivery = Delivery([sink], clock=clock.seconds)
        delivery.start()
        delivery.open(INFO)
        for told in (1, 1, 2):
            delivery.write(point(told))
            assert delivery.flush(LONG_S)
            assert len(caplog.messages) == told
            clock.advance(59 if told == 1 and not clock.now_ns > 1_030e9 else 2)
        delivery.close(SUMMARY, FINISHED)

    def test_switched_off_after_five_in_a_row(self, caplog: pytest.LogCaptureFixture) -> None:
        """After five failures in a row a sink gets only its close, and all it misses is counted."""
        sink = FailingSink(ValueError("odd"))
        delivery = started(sink)
        for step in range(8):
            delivery.write(point(step))
            assert delivery.flush(LONG_S)
        delivery.alert(alert(8))
        assert delivery.flush(LONG_S)
        assert sink.failed == 5
        off = [m for m in caplog.messages if "switched off" in m]
        assert len(off) == 1
        assert "5 times in a row write failed: ValueError: odd" in off[0]
        delivery.close(SUMMARY, FINISHED)
        assert sink.calls == ["open", "close"]
        assert dict(delivery.dropped) == {"points/failing": 8, "alerts/failing": 1}
        assert "8 points and 1 alert were not delivered" in caplog.messages[-1]

    def test_a_success_starts_the_count_anew(self) -> None:
        """Failures that are not in a row do not switch a sink off."""
        sink = FailingSink(ValueError("odd"), times=4)
        delivery = started(sink)
        for step in range(5):
            delivery.write(point(step))
            assert delivery.flush(LONG_S)
        sink.failed = 0
        for step in range(5, 10):
            delivery.write(point(step))
            assert delivery.flush(LONG_S)
        delivery.close(SUMMARY, FINISHED)
        assert [p.step for p in sink.points] == [4, 9]

    def test_a_sink_that_cannot_open_is_told_of_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """A failed open is one warning; the sink is never called again and what it misses is counted."""
        sink, good = FailingSink(NotADirectoryError("/etc/passwd/run"), on=["open"]), MemorySink()
        delivery = started(sink, good)
        for step in range(7):
            delivery.write(point(step))
        delivery.close(SUMMARY, FINISHED)
        warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "switched off: open failed: NotADirectoryError: /etc/passwd/run" in warnings[0]
        assert (sink.calls, len(good.points)) == ([], 7)
        assert dict(delivery.dropped) == {"points/failing": 7}

    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
    def test_no_exception_ends_the_worker(self, error: BaseException) -> None:
        """Not even `SystemExit` from a sink stops its delivery."""
        sink = FailingSink(error, times=1)
        delivery = started(sink)
        for step in range(2):
            delivery.write(point(step))
            assert delivery.flush(LONG_S)
        delivery.close(SUMMARY, FINISHED)
        assert [p.step for p in sink.points] == [1]
        assert sink.status is FINISHED

    def test_a_failing_close_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        """A sink that raises in close is told of, and nothing is raised."""
        delivery = started(FailingSink(OSError("gone"), on=["close"]), good := MemorySink())
        delivery.close(SUMMARY, FINISHED)
        assert caplog.messages == ["trackperf: sink failing: close failed: OSError: gone"]
        assert good.closed.is_set()

    def test_no_thread_left_in_the_system(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Where no thread can be started the sink is off with a warning, and nothing is raised."""

        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        delivery = started(MemorySink())
        delivery.write(point(1))
        delivery.close(SUMMARY, FINISHED)
        assert "sink memory is switched off: no thread could be started for it" in caplog.messages[0]
        assert dict(delivery.dropped) == {"points/memory": 1}
