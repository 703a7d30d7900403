"""What is tried again, how long after, and what is given up: on a clock that only the test moves."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import pytest
from spool_parts import FINISHED, SUMMARY, alert, info, points

from trackperf.delivery.courier import Courier, StoppedError, address_of
from trackperf.delivery.queue import End
from trackperf.delivery.retry import Backoff
from trackperf.delivery.spool import Parcel
from trackperf.errors import UnavailableError
from trackperf.testing import AwaySink, FailingSink, FakeClock, MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trackperf.record import Alert, Point
    from trackperf.sink import Sink


class Picky(MemorySink):
    """Refuses every batch that holds one of some steps."""

    def __init__(self, *bad: int) -> None:
        super().__init__("picky")
        self.bad = set(bad)

    def write(self, points: Sequence[Point]) -> None:
        """Raise, or keep the points."""
        if self.bad & {point.step for point in points}:
            self.calls.append("refused")
            raise ValueError("a bad point")
        super().write(points)


class Trip:
    """A courier on a fake clock, and what it settled."""

    def __init__(self, sink: Sink, *, waits: int = 100) -> None:
        self.clock = FakeClock()
        self.waited: list[float] = []
        self.settled: list[tuple[int, bool]] = []
        self.on_wait: Callable[[], None] = lambda: None
        self._waits = waits
        self.courier = Courier(sink, pause=self._pause, check=lambda: None, clock=self.clock.seconds)

    def carry(self, items: Sequence[Point | Alert | End]) -> None:
        """Deliver a parcel."""
        self.courier.deliver(
            Parcel(items=items, settle=lambda count, stored: self.settled.append((count, stored)))
        )

    def count(self, *, stored: bool) -> int:
        """Return how many items were settled so."""
        return sum(count for count, was in self.settled if was == stored)

    def _pause(self, seconds: float, *, asked: bool) -> None:
        if len(self.waited) >= self._waits:
            raise StoppedError
        self.waited.append(seconds)
        self.on_wait()
        self.clock.advance(seconds)


class TestWaits:
    """How long after."""

    def test_waits_double_up_to_a_minute(self) -> None:
        """The waits for a tracker that is away double from a second to a minute, with jitter."""
        trip = Trip(AwaySink(times=12))
        trip.carry(points([1]))
        waits = trip.waited
        assert trip.settled == [(1, True)]
        for number, wait in enumerate(waits):
            longest = min(60.0, 2.0 * 2**number)
            assert longest / 2 <= wait <= longest
        assert waits[0] >= 1.0
        assert len(set(waits[6:])) > 1

    def test_an_answer_begins_anew(self) -> None:
        """After an answer the waits are short again."""
        sink = AwaySink(times=6)
        trip = Trip(sink)
        trip.carry(points([1]))
        sink._times = 1
        trip.carry(points([2]))
        assert trip.waited[-1] <= 2.0

    @pytest.mark.parametrize(("asked", "waited"), [(17.0, 17.0), (0.0, 1.0), (-5.0, 1.0), (1e9, 3600.0)])
    def test_what_the_tracker_asks_for_stands(self, asked: float, waited: float) -> None:
        """`retry_after_s` is what is waited, within a second and an hour."""
        trip = Trip(AwaySink(times=2, retry_after_s=asked))
        trip.carry(points([1]))
        assert trip.waited == [waited, waited]

    @pytest.mark.parametrize("asked", [float("nan"), float("inf")])
    def test_no_number_is_no_wish(self, asked: float) -> None:
        """A `retry_after_s` that is no number counts as none."""
        assert 1.0 <= Backoff(random.Random(1)).next_s(asked) <= 2.0

    def test_the_training_s_chance_is_its_own(self) -> None:
        """Jitter takes nothing from `random`'s global state, which may seed a training."""
        random.seed(5)
        state = random.getstate()
        Trip(AwaySink(times=5)).carry(points([1]))
        assert random.getstate() == state

    def test_every_call_is_tried_again(self, tmp_path: Path) -> None:
        """Open, alert and close are as patient as write, with the same arguments."""
        for what in ("open", "alert", "close"):
            sink = AwaySink(times=3)
            trip = Trip(sink)
            if what == "open":
                assert trip.courier.open(info(tmp_path))
            else:
                trip.carry([alert(3)] if what == "alert" else [End(summary=SUMMARY, status=FINISHED)])
            assert (sink.calls, len(trip.waited)) == ([what], 3)


class TestRefusals:
    """What is given up."""

    def test_one_bad_point_costs_itself(self) -> None:
        """Of a batch that is refused the halves are tried: all but the bad points arrive, once, in order."""
        sink = Picky(17, 18, 700)
        trip = Trip(sink)
        trip.carry(points(range(1000)))
        assert [point.step for point in sink.points] == [n for n in range(1000) if n not in (17, 18, 700)]
        assert (trip.count(stored=True), trip.count(stored=False)) == (997, 3)
        assert sink.calls.count("refused") < 60
        assert trip.waited == []

    def test_when_all_are_refused_little_is_given_up(self) -> None:
        """Ten refusals in a row are the tracker's doing: no more is lost, and it is asked once a minute."""
        sink = Picky(*range(100))
        trip = Trip(sink, waits=3)
        with pytest.raises(StoppedError):
            trip.carry(points(range(100)))
        assert (trip.count(stored=True), trip.count(stored=False)) == (0, 9)
        assert trip.waited == [60.0, 60.0, 60.0]

    def test_when_it_takes_them_again_all_goes_on(self) -> None:
        """A tracker that refused everything and then does not gets all that was not given up."""
        sink = Picky(*range(100))
        trip = Trip(sink)
        trip.on_wait = sink.bad.clear
        trip.carry(points(range(100)))
        assert (len(sink.points), trip.count(stored=False)) == (91, 9)

    def test_a_refusal_between_absences(self) -> None:
        """A tracker that is away while a refused batch is halved is waited for; nothing comes twice."""

        class Both(Picky):
            def write(self, points: Sequence[Point]) -> None:
                if len(self.calls) % 3 == 1:
                    self.calls.append("away")
                    raise UnavailableError("away")
                super().write(points)

        sink = Both(3)
        trip = Trip(sink)
        trip.carry(points(range(8)))
        assert [point.step for point in sink.points] == [0, 1, 2, 4, 5, 6, 7]
        assert trip.count(stored=False) == 1

    def test_an_alert_or_an_end_that_is_refused(self) -> None:
        """A refused alert is counted; a refused end ends the run all the same."""
        trip = Trip(FailingSink(SystemExit(3), on=("alert", "close")))
        trip.carry([alert(1)])
        trip.carry([End(summary=SUMMARY, status=FINISHED)])
        assert trip.settled == [(1, False), (1, True)]
        assert "SystemExit: 3" in trip.courier.refusal

    def test_a_refused_open(self, tmp_path: Path) -> None:
        """A refused open is not tried again."""
        sink = FailingSink(ValueError("no such experiment"), on=("open",))
        assert not Trip(sink).courier.open(info(tmp_path))
        assert sink.failed == 1

    def test_warnings_are_rare(self, caplog: pytest.LogCaptureFixture) -> None:
        """However often a tracker is away, a warning about it comes once a minute."""
        trip = Trip(AwaySink(times=40))
        with caplog.at_level(logging.WARNING, "trackperf"):
            trip.carry(points([1]))
        assert 2 < len(caplog.records) <= sum(trip.waited) / 60 + 1
        assert "is away" in caplog.text


def test_an_address_is_text() -> None:
    """An address is asked for if the sink has one, and what it says is text; one that raises says nothing."""

    class Odd(MemorySink):
        def address(self) -> Mapping[str, object]:
            return {"port": 80}

    class Broken(MemorySink):
        def address(self) -> Mapping[str, str]:
            raise RuntimeError

    assert address_of(Odd()) == {"port": "80"}
    assert address_of(Broken()) == address_of(MemorySink()) == {}
