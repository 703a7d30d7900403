"""
A sink with a spool in front of it: what its tracker cannot take now is on disk until it can.

The sink's worker thread appends to the spool, which takes microseconds whatever the tracker does; a second
thread, the sender, reads the spool and calls the sink. Where nothing can be written, because the disk is full
or there is no folder, the worker waits until the sender has handed over the record itself: then the bounded
queue in front of it holds what it can, as for a sink without a spool.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from trackperf.delivery.backlog import left_behind, send_backlog
from trackperf.delivery.courier import BATCH, Courier, StoppedError, address_of
from trackperf.delivery.direct import Direct
from trackperf.delivery.notices import Notices
from trackperf.delivery.queue import End
from trackperf.delivery.spool import MAX_BYTES, Spool
from trackperf.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackperf.delivery.retry import Backoff
    from trackperf.delivery.spool import Parcel
    from trackperf.record import Alert, Point, RunInfo, RunSummary, Status
    from trackperf.sink import Remote

__all__ = ["Spooled"]

_GRACE_S: Final = 0.2
"""How long to wait at the end for a sender that has nothing more to do."""


class Spooled:
    """
    The sink that a worker serves in place of one whose tracker can be away.

    `open`, `write`, `alert` and `close` are the worker's; `flush`, `ending`, `wait` and `conclude` belong to
    whoever ends the run, who may be a signal handler, and take no lock.
    """

    def __init__(
        self,
        sink: Remote,
        *,
        clock: Callable[[], float],
        max_bytes: int = MAX_BYTES,
        backoff: Backoff | None = None,
    ) -> None:
        """
        Args:
            sink: the real sink.

            clock: seconds of a monotonic clock.

            max_bytes: what the spool takes on disk before the oldest points give way.

            backoff: how long to wait for a tracker that is away.
        """
        self.name = str(sink.name)
        """Name of the sink, for messages."""
        self.ended = False
        """Whether the sender has done all that it had to do, or was stopped."""
        self._sink = sink
        self._clock = clock
        self._max_bytes = max_bytes
        self._courier = Courier(
            sink, pause=self._wait_to_retry, check=self._check, clock=clock, backoff=backoff
        )
        self._notices = Notices(self.name)
        self._thread: threading.Thread | None = None
        self._run: RunInfo | None = None
        self._spool: Spool | None = None
        self._backlog: list[Spool] = []
        self._direct = Direct()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._waiters: deque[SimpleQueue[bool]] = deque()
        self._flushers: deque[SimpleQueue[bool]] = deque()
        self._deadline: float | None = None
        self._ending = False
        self._stopped = False
        self._delivered = False
        self._concluded = False

    @property
    def lost(self) -> tuple[int, int]:
        """Points and alerts that the sink does not get: refused, or given up for room."""
        points, alerts = self._direct.lost
        cursors = [spool.cursor for spool in (self._spool, *self._backlog) if spool is not None]
        return points + sum(one.lost for one in cursors), alerts + sum(one.lost_alerts for one in cursors)

    def start(self) -> None:
        """Start the sender; where the system has no thread left, everything waits on disk."""
        thread = threading.Thread(target=self._work, name=f"trackperf-{self.name}-sender", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._notices.no_thread(error)
            self._stopped = self.ended = True
        else:
            self._thread = thread

    def open(self, run: RunInfo) -> None:
        """Make the spool, and let the sender begin."""
        try:
            self._spool = Spool.create(self.name, run, address_of(self._sink), max_bytes=self._max_bytes)
            self._backlog = left_behind(self._spool)
        except OSError as error:
            self._notices.no_disk(error)
        self._run = run
        self._rouse()

    def write(self, points: Sequence[Point]) -> None:
        """Put points on disk."""
        self._hand_over(points)

    def alert(self, alert: Alert) -> None:
        """Put an alert on disk."""
        self._hand_over(alert)

    def close(self, summary: RunSummary, status: Status) -> None:
        """Put the end on disk."""
        if self._spool is not None and self._run is not None:
            with contextlib.suppress(OSError):
                # Names may have come since the spool was made.
                self._spool.describe(run=self._run)
        self._hand_over(End(summary=summary, status=status))
        self._ending = True

    def flush(self, timeout_s: float) -> bool:
        """Wait until the sink has what is on disk, and return whether it has; at once if it is away."""
        answer: SimpleQueue[bool] = SimpleQueue()
        self._flushers.append(answer)
        if self.ended:
            return self._delivered
        self._rouse()
        with contextlib.suppress(Empty):
            return answer.get(timeout=max(0.0, timeout_s))
        return False

    def ending(self, deadline: float) -> None:
        """Say that the run ends, and by when the sender must have: a wait is cut short."""
        if self._deadline is None:
            self._deadline = deadline
            self._rouse()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the sender has ended, if the run's end is on its way, and say whether it has."""
        if self._thread is None or self._thread is threading.current_thread() or not self._ending:
            return self.ended
        answer: SimpleQueue[bool] = SimpleQueue()
        self._waiters.append(answer)
        if not self.ended:
            with contextlib.suppress(Empty):
                answer.get(timeout=max(0.0, timeout_s))
        return self.ended

    def conclude(self, waited_s: float) -> None:
        """Stop the sender, and say once what waits where, and what the sink does not get."""
        if self._concluded:
            return
        self._concluded = True
        self._stopped = True
        self._rouse()
        self._ending = True
        if not (doing := self._courier.doing):
            self.wait(_GRACE_S)
        elif not self.ended:
            self._courier.trouble = f"it did not come back from {doing} within {waited_s:g} s"
        self._notices.lost(*self.lost, self._courier.refusal)
        if self._spool is not None:
            if self.ended:
                self._spool.close()
            if not self._delivered:
                waiting = self._spool.waiting + sum(one.waiting for one in self._backlog)
                self._notices.waiting(waiting, self._spool.folder, self._courier.trouble)

    def forget(self) -> None:
        """Hold nothing, in a forked child."""
        self._stopped = True
        self._waiters.clear()
        self._flushers.clear()
        for spool in (self._spool, *self._backlog):
            if spool is not None:
                spool.forget()

    def _hand_over(self, record: Sequence[Point] | Alert | End) -> None:
        while not self._put(record):
            pass

    def _put(self, record: Sequence[Point] | Alert | End) -> bool:
        """Put a record on disk, or wait until the sink has it; False when the disk is to be tried again."""
        if self._spool is not None:
            try:
                if self._spool.append(record):
                    self._notices.over(self._spool.folder, self._max_bytes)
            except OSError as error:
                self._notices.no_disk(error)
            else:
                self._notices.disk()
                self._rouse()
                return True
        return self._direct.give(record, rouse=self._rouse, check=self._check_taker)

    def _check_taker(self) -> None:
        if self._stopped or self.ended:
            raise UnavailableError(self._courier.trouble or "it was stopped")

    def _work(self) -> None:
        try:
            self._send()
        except StoppedError:
            pass
        except Exception as error:  # noqa: BLE001 - training goes on
            self._courier.trouble = f"its spool cannot be read: {error}"
            self._notices.broken(error)
        finally:
            self._let_go()
            self.ended = True
            for answers in (self._flushers, self._waiters):
                while answers:
                    answers.popleft().put(self._delivered)

    def _send(self) -> None:
        # Early: it takes a tenth of a second, and at the interpreter's exit nothing can be imported any more.
        importlib.import_module("filelock")
        while self._run is None:
            self._check()
            self._wake.get()
        if not self._courier.open(self._run):
            self._notices.refused()
            return
        if self._spool is not None:
            with contextlib.suppress(OSError):
                self._spool.describe(address=address_of(self._sink))
        for spool in self._backlog:
            send_backlog(spool, self._courier.deliver, before=self._run.resume_step)
        while not self._delivered:
            parcel = self._next()
            self._courier.deliver(parcel)
            self._delivered = isinstance(parcel.items[0] if parcel.items else None, End)

    def _next(self) -> Parcel:
        """Return what comes next: from the disk, and only then what could not be put there."""
        while True:
            self._check()
            if self._spool is not None and (parcel := self._spool.take(BATCH)):
                return parcel
            if parcel := self._direct.take():
                return parcel
            self._answer_flushers(True)
            self._wake.get()

    def _let_go(self) -> None:
        for spool in (self._spool, *self._backlog):
            if spool is not None and self._delivered:
                spool.remove()
            elif spool is not None and self._concluded:
                spool.close()

    def _check(self) -> None:
        if self._stopped:
            raise StoppedError

    def _wait_to_retry(self, seconds: float, *, asked: bool) -> None:
        """Wait; the end of the run cuts it short, unless the tracker itself asked for it."""
        until, in_time = self._clock() + seconds, self._deadline is None
        while (left := until - self._clock()) > 0:
            self._answer_flushers(False)
            self._check()
            if self._deadline is not None:
                if in_time and not asked:
                    self._courier.backoff.reset()
                    return
                if until >= self._deadline:
                    raise StoppedError
            with contextlib.suppress(Empty):
                self._wake.get(timeout=left)

    def _answer_flushers(self, delivered: bool) -> None:
        while self._flushers:
            self._flushers.popleft().put(delivered)

    def _rouse(self) -> None:
        if self._wake.empty():
            self._wake.put(None)
