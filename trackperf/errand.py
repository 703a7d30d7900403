"""One run on its way to one sink, outside any training: from its spools, or from a history that was read."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trackperf.delivery.backlog import send_backlog
from trackperf.delivery.courier import BATCH, Courier, StoppedError, address_of
from trackperf.delivery.queue import End
from trackperf.delivery.spool import Parcel
from trackperf.metrics import full_key
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trackperf.delivery.spool import Spool
    from trackperf.history import RunHistory
    from trackperf.sink import Sink

__all__ = ["Errand", "points_of"]

_TRIES: Final = 3
"""Times in a row that a tracker may fail to answer before what waits for it is left for later."""

_PATIENCE_S: Final = 60.0
"""A wait that is not worth it: a person would rather be told."""

_NO_PHASES: Final = ("wall", "eta", "to_goal")
_ADDED: Final = "perf_summary/"


class Errand:
    """Delivers with a little patience, and counts."""

    def __init__(self, sink: Sink, *, tell: Callable[[int], None], sleep: Callable[[float], None]) -> None:
        """
        Args:
            sink: where to deliver to.

            tell: is told how many points are done.

            sleep: waits for a number of seconds.
        """
        self.sent = 0
        """Points that the sink took."""
        self.lost = 0
        """Points that it refused."""
        self._sink = sink
        self._tell = tell
        self._sleep = sleep
        self._courier = Courier(sink, pause=self._wait, check=lambda: None, clock=time.monotonic)
        self._last: Point | None = None
        self._raised: list[Alert] = []

    @property
    def why(self) -> str:
        """What went wrong; empty when nothing did."""
        return self._courier.trouble or self._courier.refusal

    def spools(self, spools: Sequence[Spool], *, own: bool) -> bool:
        """
        Send what waits of a run, and remove it; return whether nothing remains.

        Args:
            spools: one for each process of the run, oldest first.

            own: whether the sink is the one that they were written for, which knows the run already.
        """
        last = spools[-1]
        place = last.folder.parent
        run = replace(last.manifest.run, dir=str(place.parent))
        if not own:
            run = replace(run, resume_step=None)
        address = next((one.manifest.address for one in reversed(spools) if one.manifest.address), {})
        try:
            if own and address and not self._courier.rejoin(address):
                return False
            if not self._courier.open(run):
                return False
            with contextlib.suppress(OSError):
                # Found again by a later call, if this one does not come to its end.
                last.describe(address=address_of(self._sink) if own else None)
            before = last.manifest.run.resume_step
            for spool in spools[:-1]:
                send_backlog(spool, self._deliver, before=before)
            self._last_spool(last, run)
        except StoppedError:
            return False
        last.remove()
        return True

    def history(self, history: RunHistory, folder: str | None) -> int:
        """
        Send a run that was read; return how many points were left over.

        Args:
            history: the run.

            folder: where runs are, for a sink that writes files; as in the run itself when None.
        """
        if history.info is None:
            raise ValueError(f"{history.source} was not written by trackperf")
        run = replace(history.info, resume_step=None, dir=folder or history.info.dir)
        items = list(_in_order(history))
        points = sum(isinstance(item, Point) for item in items)
        try:
            if not self._courier.open(run):
                return points
            for parcel in _parcels(items):
                self._deliver(parcel)
            summary = history.summary or self._known(run, history.alerts)
            self._courier.close(End(summary=summary, status=history.status or Status.KILLED))
        except StoppedError:
            pass
        return points - self.sent - self.lost

    def _last_spool(self, spool: Spool, run: RunInfo) -> None:
        ended = False
        while parcel := spool.take(BATCH):
            ended = isinstance(parcel.items[0], End)
            self._deliver(parcel)
        if not ended:
            steps = max(spool.cursor.step, self._last.step if self._last else 0)
            self._courier.close(End(summary=self._known(run, self._raised, steps), status=Status.KILLED))

    def _deliver(self, parcel: Parcel) -> None:
        items, settle = tuple(parcel.items), parcel.settle

        def count(number: int, stored: bool) -> None:
            settle(number, stored)
            if isinstance(items[0], Point):
                self.sent += number * stored
                self.lost += number * (not stored)
                self._tell(self.sent + self.lost)

        parcel.settle = count
        self._courier.deliver(parcel)
        for item in items:
            if isinstance(item, Point):
                self._last = item if self._last is None or len(item.values) > 1 else self._last
            elif isinstance(item, Alert) and item.state == "raised":
                self._raised.append(item)

    def _known(self, run: RunInfo, alerts: Sequence[Alert], steps: int = 0) -> RunSummary:
        """Return what can be said of a run that did not say it itself: nothing that would be a guess."""
        phases = {}
        last = self._last
        begin = full_key("perf_time/", run.prefix)
        for key, value in last.values.items() if last else ():
            name = key.removeprefix(begin).removesuffix("_s")
            if key == f"{begin}{name}_s" and name not in _NO_PHASES:
                phases[name] = value
        return RunSummary(
            steps=max(steps, last.step if last else 0),
            samples=None,
            phases=phases,
            alerts=tuple(alert for alert in alerts if alert.state == "raised"),
            names=run.names,
        )

    def _wait(self, seconds: float, *, asked: bool) -> None:  # noqa: ARG002 - both kinds of wait are kept
        if self._courier.backoff.failures >= _TRIES or seconds >= _PATIENCE_S:
            raise StoppedError
        self._sleep(seconds)


def points_of(history: RunHistory) -> list[Point]:
    """Return the points of a history: values of one step and time together, in order."""
    table: dict[tuple[int, float], dict[str, float]] = {}
    for key, series in history.series.items():
        if not key.startswith(_ADDED):
            rows = zip(series.step.tolist(), series.wall_time.tolist(), series.value.tolist(), strict=True)
            for step, wall_time, value in rows:
                table.setdefault((step, wall_time), {})[key] = value
    return [
        Point(step=step, wall_time=wall_time, values=table[step, wall_time])
        for step, wall_time in sorted(table)
    ]


def _in_order(history: RunHistory) -> Iterator[Point | Alert]:
    """Yield points and alerts by step, an alert after the points that it was judged by."""
    items: list[Point | Alert] = [*points_of(history), *history.alerts]
    yield from sorted(items, key=lambda item: (item.step, isinstance(item, Alert)))


def _parcels(items: Sequence[Point | Alert]) -> Iterator[Parcel]:
    for alerts, run in itertools.groupby(items, key=lambda item: isinstance(item, Alert)):
        of_a_kind, size = list(run), 1 if alerts else BATCH
        for first in range(0, len(of_a_kind), size):
            yield Parcel(items=of_a_kind[first : first + size], settle=lambda number, stored: None)  # noqa: ARG005 - kept nowhere
