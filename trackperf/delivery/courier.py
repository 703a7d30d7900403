"""Hands what waits to a sink, one call at a time, as often as it takes."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from trackperf.delivery.retry import Backoff
from trackperf.errors import UnavailableError
from trackperf.record import Alert, Point
from trackperf.sink import Remote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackperf.delivery.queue import End
    from trackperf.delivery.spool import Parcel
    from trackperf.record import RunInfo
    from trackperf.sink import Sink

__all__ = ["BATCH", "Courier", "Pause", "StoppedError", "address_of"]

_log = logging.getLogger("trackperf")

BATCH: Final = 1000
"""Points handed over at once, at most."""

_REFUSED_IN_A_ROW: Final = 10
"""So many points refused one after the other are the tracker's doing, not theirs."""

_WARN_EVERY_S: Final = 60.0
"""Least time between two warnings about the same sink."""


class StoppedError(Exception):
    """Whoever sends is to stop: what was not handed over stays where it is."""


class Pause(Protocol):
    """Waits until it is time to try again."""

    def __call__(self, seconds: float, *, asked: bool) -> None:
        """
        Wait.

        Args:
            seconds: how long.

            asked: whether the tracker asked for it, so that it may not be cut short.

        Raises:
            StoppedError: there will be no time for another try.
        """
        ...


class Courier:
    """
    One sink, in the hands of one thread.

    `UnavailableError` means to try the same again later. Anything else is a refusal: of a batch, the halves
    are tried, down to the points that are the cause. When point after point is refused, none of them can be
    the cause, so nothing more is given up, and the next is tried once a minute.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        pause: Pause,
        check: Callable[[], None],
        clock: Callable[[], float],
        backoff: Backoff | None = None,
    ) -> None:
        """
        Args:
            sink: where to deliver to.

            pause: waits between two tries.

            check: raises `StoppedError` when nothing more is to be handed over.

            clock: seconds of a monotonic clock.

            backoff: how long to wait.
        """
        self.doing = ""
        """The call that the sink is in; empty between calls."""
        self.trouble = ""
        """What failed last; empty when the last call went well."""
        self.refusal = ""
        """Why something was last refused for good; empty when nothing was."""
        self.backoff = backoff or Backoff()
        """How long it waits."""
        self._sink = sink
        self._pause = pause
        self._check = check
        self._clock = clock
        self._refused_in_a_row = 0
        self._warned_at: float | None = None

    def rejoin(self, address: Mapping[str, str]) -> bool:
        """Tell the sink where the run is, and return whether it did not refuse."""
        sink = self._sink
        return not isinstance(sink, Remote) or self._call("rejoin", lambda: sink.rejoin(address))

    def open(self, run: RunInfo) -> bool:
        """Open the sink, and return whether it did not refuse."""
        return self._call("open", lambda: self._sink.open(run))

    def deliver(self, parcel: Parcel) -> None:
        """
        Hand over what a parcel holds, and settle each part of it.

        Raises:
            StoppedError: not all of it; what is not settled was not taken.
        """
        first = parcel.items[0]
        if isinstance(first, Point):
            self._points(parcel)
        elif isinstance(first, Alert):
            parcel.settle(1, self._call("alert", lambda: self._sink.alert(first)))
        else:
            self.close(first)
            # The run is over for the sink, also where it refused.
            parcel.settle(1, True)

    def close(self, end: End) -> bool:
        """Close the sink, and return whether it did not refuse."""
        return self._call("close", lambda: self._sink.close(end.summary, end.status))

    def _points(self, parcel: Parcel) -> None:
        parts = [cast("list[Point]", list(parcel.items))]
        while parts:
            part = parts.pop()
            if self._call("write", partial(self._sink.write, part)):
                self._refused_in_a_row = 0
                parcel.settle(len(part), True)
            elif len(part) > 1:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
            elif self._refused_in_a_row + 1 < _REFUSED_IN_A_ROW:
                self._refused_in_a_row += 1
                parcel.settle(1, False)
            else:
                self._pause(self.backoff.most_s, asked=True)
                parts.append(part)

    def _call(self, what: str, call: Callable[[], None]) -> bool:
        """Call the sink until it answers, and return whether it took what it was handed."""
        while True:
            self._check()
            self.doing = what
            try:
                call()
            except UnavailableError as error:
                self._failed(f"{what}: {error}", error=None)
                wait_s, asked = self.backoff.next_s(error.retry_after_s), error.retry_after_s is not None
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a sink may raise anything
                self.refusal = f"{what} failed: {type(error).__name__}: {error}"
                self._failed(self.refusal, error=error)
                return False
            else:
                self.trouble = ""
                self.backoff.reset()
                return True
            finally:
                self.doing = ""
            self._pause(wait_s, asked=asked)

    def _failed(self, why: str, *, error: BaseException | None) -> None:
        self.trouble = why
        now = self._clock()
        if self._warned_at is not None and now - self._warned_at < _WARN_EVERY_S:
            return
        first, self._warned_at = self._warned_at is None, now
        if error is None:
            _log.warning("trackperf: sink %s is away (%s); what it gets waits on disk", self._sink.name, why)
        else:
            exc_info = error if first else None
            _log.warning("trackperf: sink %s refuses: %s", self._sink.name, why, exc_info=exc_info)


def address_of(sink: Sink) -> Mapping[str, str]:
    """Return where a sink's run is, as it says itself; empty when it does not."""
    ask = getattr(sink, "address", None)
    try:
        return {str(key): str(value) for key, value in ask().items()} if ask is not None else {}
    except Exception:  # noqa: BLE001 - a foreign sink may raise anything
        _log.debug("trackperf: sink %s does not tell its address", sink.name, exc_info=True)
        return {}
