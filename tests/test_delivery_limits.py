"""Delivery: sinks that do not keep up, and the end with sinks in every state."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import tracemalloc
import weakref
from typing import TYPE_CHECKING

import pytest
from delivery_parts import FINISHED, INFO, LONG_S, SUMMARY, alert, open_files, point, started

from trackperf.delivery import Delivery
from trackperf.delivery.queue import BoundedQueue
from trackperf.record import Point, RunSummary, Status
from trackperf.testing import FailingSink, MemorySink, StallingSink

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stalling() -> Iterator[StallingSink]:
    """Give a sink that stalls in write, and let it go at the end."""
    sink = StallingSink()
    yield sink
    sink.release.set()


class TestLimit:
    """A sink that does not keep up."""

    def test_the_oldest_points_give_way(
        self, stalling: StallingSink, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Beyond the limit a stalled sink loses its oldest points, counted and said once; alerts stay."""
        delivery = started(stalling, max_bytes=100_000)
        delivery.write(point(0))
        assert stalling.stalled.wait(LONG_S)
        delivery.alert(alert(0))
        for step in range(1, 10_001):
            delivery.write(point(step))
        lost = delivery.dropped_points
        assert lost > 9000
        assert len([m for m in caplog.messages if "more slowly than they come" in m]) == 1
        stalling.release.set()
        delivery.close(SUMMARY, FINISHED)
        assert [p.step for p in stalling.points] == [0, *range(lost + 1, 10_001)]
        assert len(stalling.alerts) == 1
        assert f"{lost} points were not delivered: it was too slow" in caplog.messages[-1]

    def test_what_was_delivered_makes_room(self) -> None:
        """A sink that keeps up loses nothing, however much goes through in all."""
        sink = MemorySink()
        delivery = started(sink, max_bytes=10_000)
        for step in range(200):
            delivery.write(point(step))
            assert delivery.flush(LONG_S)
        delivery.close(SUMMARY, FINISHED)
        assert (len(sink.points), delivery.dropped_points) == (200, 0)

    def test_memory_stays_below_the_limit(self, stalling: StallingSink) -> None:
        """What a stalled sink really holds is below the limit, for points of few and of many values."""
        limit = 2**20
        for width in (1, 8, 40):
            keys = [f"perf/key_{n}" for n in range(width)]
            delivery = started(sink := StallingSink(), max_bytes=limit)
            delivery.write(point(0))
            assert sink.stalled.wait(LONG_S)
            tracemalloc.start()
            for step in range(12_000):
                values = {key: step + 0.5 for key in keys}  # noqa: C420 - a float object each, as in a run
                delivery.write(Point(step=step + 1000, wall_time=step + 0.25, values=values))
            held = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert limit / 3 < held < limit
            sink.release.set()
            delivery.close(SUMMARY, FINISHED)

    def test_alerts_give_way_last(self, stalling: StallingSink) -> None:
        """When no point is left to give up, further alerts are refused: nothing grows without limit."""
        delivery = started(stalling, max_bytes=100_000)
        delivery.write(point(0))
        assert stalling.stalled.wait(LONG_S)
        delivery.write(point(1))
        for step in range(2, 1002):
            delivery.alert(alert(step))
        assert delivery.dropped["points/stalling"] == 1
        stalling.release.set()
        delivery.close(SUMMARY, FINISHED)
        assert [p.step for p in stalling.points] == [0]
        assert [a.step for a in stalling.alerts] == list(range(2, 2 + len(stalling.alerts)))
        assert 90 < len(stalling.alerts) < 130
        assert delivery.dropped["alerts/stalling"] == 1000 - len(stalling.alerts)

    def test_writing_does_not_wait_for_a_stalled_sink(self, stalling: StallingSink) -> None:
        """With a sink that never comes back, 20 000 points go in at less than 100 us each."""
        delivery = started(stalling, max_bytes=100_000)
        delivery.write(point(0))
        assert stalling.stalled.wait(LONG_S)
        points = [point(step) for step in range(20_000)]
        since = time.thread_time()
        for one in points:
            delivery.write(one)
        assert time.thread_time() - since < 2.0

    def test_many_calls_leave_one_wake_up(self) -> None:
        """The queue remembers one call for its consumer, not one for each item."""
        queue = BoundedQueue(10_000)
        for step in range(1000):
            queue.put(point(step))
        assert queue._wake.qsize() == 1


class TestClose:
    """The end, with sinks in every state."""

    def test_hanging_sinks_share_one_deadline(self, caplog: pytest.LogCaptureFixture) -> None:
        """Three hanging sinks cost the limit once; each is told of with what it did not take and why."""
        sinks = [StallingSink(name="a"), StallingSink(name="b"), StallingSink(name="c", on=["close"])]
        good = MemorySink()
        delivery = started(*sinks, good)
        for step in range(37):
            delivery.write(point(step))
        since = time.monotonic()
        delivery.close(SUMMARY, FINISHED, timeout_s=0.4)
        took = time.monotonic() - since
        for sink in sinks:
            sink.release.set()
        assert 0.35 < took < 2.0
        assert len(good.points) == 37
        assert good.status is FINISHED
        assert sorted(caplog.messages) == [
            "trackperf: sink a: 37 points were not delivered: it did not come back from write within 0.4 s",
            "trackperf: sink b: 37 points were not delivered: it did not come back from write within 0.4 s",
            "trackperf: sink c: the run may look unfinished there: it did not come back from close within 0.4 s",  # noqa: E501
        ]
        assert dict(delivery.dropped) == {"points/a": 37, "points/b": 37}

    def test_a_sink_that_comes_back_late_is_still_closed(self) -> None:
        """A sink given up at the deadline gets no more points, but its close when it comes back."""
        sink = StallingSink()
        delivery = started(sink)
        delivery.write(point(1))
        assert sink.stalled.wait(LONG_S)
        delivery.write(point(2))
        delivery.close(SUMMARY, FINISHED, timeout_s=0.0)
        sink.release.set()
        assert sink.closed.wait(LONG_S)
        assert sink.calls == ["open", "write", "close"]
        assert dict(delivery.dropped) == {"points/stalling": 2}

    def test_closing_again_does_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        """A second close leaves summary and status of the first; points after it are counted as lost."""
        sink = MemorySink()
        delivery = started(sink)
        delivery.close(SUMMARY, FINISHED)
        delivery.close(RunSummary(steps=99, samples=None), Status.KILLED)
        assert (sink.calls, sink.status) == (["open", "close"], FINISHED)
        delivery.write(point(1))
        delivery.alert(alert(1))
        assert dict(delivery.dropped) == {"points/memory": 1, "alerts/memory": 1}
        assert caplog.messages == []

    def test_a_second_thread_waits_within_the_first_ones_time(
        self, stalling: StallingSink, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Closing from several threads at once takes one limit, and says each thing once."""
        delivery = started(stalling)
        delivery.write(point(1))
        assert stalling.stalled.wait(LONG_S)
        threads = [
            threading.Thread(target=delivery.close, args=(SUMMARY, FINISHED, timeout))
            for timeout in (0.3, 20.0, 20.0)
        ]
        since = time.monotonic()
        for thread in threads:
            thread.start()
            while delivery._deadline is None:
                os.sched_yield()
        for thread in threads:
            thread.join()
        delivery.close(SUMMARY, FINISHED)
        assert time.monotonic() - since < 5.0
        assert delivery.dropped_points == 1
        assert len(caplog.messages) == 1

    def test_who_flushes_is_answered_when_a_sink_is_given_up(self, stalling: StallingSink) -> None:
        """A flush that waits for a sink that is then left behind returns False at once."""
        delivery = started(stalling)
        delivery.write(point(1))
        assert stalling.stalled.wait(LONG_S)
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(delivery.flush(LONG_S)))
        thread.start()
        while not len(delivery._workers[0]._queue):
            os.sched_yield()
        delivery.close(SUMMARY, FINISHED, timeout_s=0.0)
        thread.join(LONG_S / 3)
        assert answers == [False]

    def test_never_started(self, caplog: pytest.LogCaptureFixture) -> None:
        """What was given to a delivery that never started is counted at once, and it cannot start later."""
        sink = MemorySink()
        delivery = Delivery([sink])
        delivery.open(INFO)
        delivery.write(point(1))
        since = time.monotonic()
        delivery.close(SUMMARY, FINISHED)
        assert time.monotonic() - since < 2.0
        delivery.start()
        assert caplog.messages == ["trackperf: sink memory: 1 point was not delivered: it was never started"]
        assert sink.calls == []

    def test_never_opened(self, caplog: pytest.LogCaptureFixture) -> None:
        """A sink that was not opened is neither written to nor closed."""
        sink = MemorySink()
        delivery = Delivery([sink])
        delivery.start()
        delivery.write(point(1))
        delivery.close(SUMMARY, FINISHED)
        assert sink.calls == []
        assert "1 point was not delivered: it was never opened" in caplog.messages[0]

    def test_two_hundred_cycles_leave_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        """200 deliveries with three sinks each leave no thread, no open file and no object."""
        caplog.set_level(logging.CRITICAL, "trackperf")  # a captured traceback holds its sink
        descriptors = open_files()
        threads = threading.active_count()
        left: list[weakref.ref[Delivery] | weakref.ref[MemorySink]] = []
        for _ in range(200):
            sinks = [MemorySink("a"), FailingSink(ValueError("odd"), name="b"), MemorySink("c")]
            delivery = started(*sinks)
            delivery.write(point(1))
            delivery.close(SUMMARY, FINISHED)
            left += [weakref.ref(delivery), *(weakref.ref(sink) for sink in sinks)]
            del delivery, sinks
        gc.collect()
        assert abs(threading.active_count() - threads) <= 1
        assert abs(open_files() - descriptors) <= 1
        assert sum(ref() is not None for ref in left) == 0
