"""
Fakes and the contract kit, for whoever writes a sink and for users' own tests.

`check_sink(MySink)` puts a sink through everything that trackperf may do with it. `MemorySink` takes the
place of a tracker in a test of a training script; `FailingSink` and `StallingSink` that of one in trouble,
and `AwaySink` that of one behind a network.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from trackperf._contract import check_sink
from trackperf.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

__all__ = ["AwaySink", "FailingSink", "FakeClock", "MemorySink", "StallingSink", "check_sink"]

_NS: Final = 1_000_000_000


class FakeClock:
    """A clock in nanoseconds that stands still until it is moved; for `time.perf_counter_ns`."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.now_ns = round(start_s * _NS)
        """What the clock shows."""

    def __call__(self) -> int:
        """Return the time in nanoseconds."""
        return self.now_ns

    def advance(self, seconds: float) -> None:
        """Move the clock forward, rounded to a nanosecond."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock does not go back (got {seconds} s)")
        self.now_ns += round(seconds * _NS)

    def seconds(self) -> float:
        """Return the time in seconds; for what takes `time.monotonic`."""
        return self.now_ns / _NS


class MemorySink:
    """Keeps everything that it gets."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        """Name of the sink."""
        self.info: RunInfo | None = None
        """What it was opened with; None before."""
        self.points: list[Point] = []
        """Points, in order."""
        self.batches: list[int] = []
        """Number of points of each `write`."""
        self.alerts: list[Alert] = []
        """Alerts, in order."""
        self.calls: list[str] = []
        """Names of the methods called, in order."""
        self.summary: RunSummary | None = None
        """What it was closed with; None before."""
        self.status: Status | None = None
        """How the run ended; None before."""
        self.closed = threading.Event()
        """Set when it was closed, for a test to wait on."""

    def open(self, run: RunInfo) -> None:
        """Keep the run."""
        self.calls.append("open")
        self.info = run

    def write(self, points: Sequence[Point]) -> None:
        """Keep the points."""
        self.calls.append("write")
        self.batches.append(len(points))
        self.points += points

    def alert(self, alert: Alert) -> None:
        """Keep the alert."""
        self.calls.append("alert")
        self.alerts.append(alert)

    def close(self, summary: RunSummary, status: Status) -> None:
        """Keep summary and status."""
        self.calls.append("close")
        self.summary, self.status = summary, status
        self.closed.set()

    def series(self, key: str) -> list[tuple[int, float]]:
        """Return one series: step and value of each point that has the key."""
        return [(point.step, point.values[key]) for point in self.points if key in point.values]


class FailingSink(MemorySink):
    """Raises in the methods named, and keeps what the others get."""

    def __init__(
        self,
        error: BaseException,
        *,
        on: Sequence[str] = ("write",),
        times: int | None = None,
        name: str = "failing",
    ) -> None:
        """
        Args:
            error: what it raises.

            on: methods that raise.

            times: how many calls fail before the rest succeed; all when None.

            name: name of the sink.
        """
        super().__init__(name)
        self.failed = 0
        """How often it has raised."""
        self._error = error
        self._on = frozenset(on)
        self._times = times

    def open(self, run: RunInfo) -> None:
        """Raise, or keep the run."""
        self._fail("open")
        super().open(run)

    def write(self, points: Sequence[Point]) -> None:
        """Raise, or keep the points."""
        self._fail("write")
        super().write(points)

    def alert(self, alert: Alert) -> None:
        """Raise, or keep the alert."""
        self._fail("alert")
        super().alert(alert)

    def close(self, summary: RunSummary, status: Status) -> None:
        """Raise, or keep summary and status."""
        self._fail("close")
        super().close(summary, status)

    def _fail(self, method: str) -> None:
        if method in self._on and (self._times is None or self.failed < self._times):
            self.failed += 1
            raise self._error


class StallingSink(MemorySink):
    """Does not come back from the methods named until `release` is set."""

    def __init__(self, *, on: Sequence[str] = ("write",), name: str = "stalling") -> None:
        """
        Args:
            on: methods that stall.

            name: name of the sink.
        """
        super().__init__(name)
        self.stalled = threading.Event()
        """Set while it stalls or has stalled, for a test to wait on."""
        self.release = threading.Event()
        """Set it to let the sink go on."""
        self._on = frozenset(on)

    def open(self, run: RunInfo) -> None:
        """Stall, then keep the run."""
        self._stall("open")
        super().open(run)

    def write(self, points: Sequence[Point]) -> None:
        """Stall, then keep the points."""
        self._stall("write")
        super().write(points)

    def alert(self, alert: Alert) -> None:
        """Stall, then keep the alert."""
        self._stall("alert")
        super().alert(alert)

    def close(self, summary: RunSummary, status: Status) -> None:
        """Stall, then keep summary and status."""
        self._stall("close")
        super().close(summary, status)

    def _stall(self, method: str) -> None:
        if method in self._on:
            self.stalled.set()
            self.release.wait()


class AwaySink(MemorySink):
    """A `Remote` sink: while its tracker is away, every method raises `UnavailableError`."""

    def __init__(
        self,
        *,
        away: bool = True,
        times: int | None = None,
        retry_after_s: float | None = None,
        name: str = "away",
    ) -> None:
        """
        Args:
            away: whether the tracker is away at first.

            times: how many calls fail before it is there by itself; None to leave that to `away`.

            retry_after_s: what the tracker asks for.

            name: name of the sink.
        """
        super().__init__(name)
        self.away = away
        """Whether the tracker is away; a test may change it at any time."""
        self.tried = threading.Event()
        """Set when a call has failed, for a test to wait on."""
        self.rejoined: dict[str, str] = {}
        """Address that the sink was told to go on at; empty when it was not."""
        self._times = times
        self._retry_after_s = retry_after_s

    def open(self, run: RunInfo) -> None:
        """Raise, or keep the run."""
        self._reach("open")
        super().open(run)

    def write(self, points: Sequence[Point]) -> None:
        """Raise, or keep the points."""
        self._reach("write")
        super().write(points)

    def alert(self, alert: Alert) -> None:
        """Raise, or keep the alert."""
        self._reach("alert")
        super().alert(alert)

    def close(self, summary: RunSummary, status: Status) -> None:
        """Raise, or keep summary and status."""
        self._reach("close")
        super().close(summary, status)

    def address(self) -> Mapping[str, str]:
        """Return the run's identity, once it is open."""
        return {} if self.info is None else {"run_id": self.info.run_id}

    def rejoin(self, address: Mapping[str, str]) -> None:
        """Keep the address."""
        self.rejoined = dict(address)

    def _reach(self, method: str) -> None:
        if self._times is not None:
            self._times -= 1
            self.away = self._times >= 0
        if self.away:
            self.tried.set()
            raise UnavailableError(f"{method}: nobody answers", retry_after_s=self._retry_after_s)
