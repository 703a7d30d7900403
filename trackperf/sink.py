"""The boundary to trackers: what a sink must do, and what it may count on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

__all__ = ["Remote", "Sink"]


@runtime_checkable
class Sink(Protocol):
    """
    One place that a run is written to.

    A sink may count on this: it is built on the thread that calls `trackperf.init`, and
    should fail there, with a message, when it can never work. `open`, `write`, `alert` and
    `close` are called on one worker thread of its own, never concurrently, `open` first and
    once, `close` last and at most once. Each may block or raise: training and other sinks go on;
    after repeated failure it is switched off with one warning, and what it did not take is counted.
    It is never called in a loader worker or in a forked child.
    """

    name: str
    """Short name for messages: lower case, no spaces."""

    def open(self, run: RunInfo) -> None:
        """Begin a run, or go on with one when `run.resume_step` is set."""
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Take a batch of points, in rising steps."""
        ...

    def alert(self, alert: Alert) -> None:
        """Take an alert that was raised or cleared."""
        ...

    def close(self, summary: RunSummary, status: Status) -> None:
        """Finish the run: everything handed over before is safe when this returns."""
        ...


@runtime_checkable
class Remote(Sink, Protocol):
    """
    A sink whose tracker may be away for a while: what it gets waits in a spool on disk until it has it.

    `open`, `write`, `alert` and `close` raise `UnavailableError` when the tracker cannot be reached, and are
    then called again with the same arguments, in the same order, also by a later process (`trackperf sync`).
    So a call that comes a second time must not store anything twice. Each call keeps a deadline of its own.
    """

    def address(self) -> Mapping[str, str]:
        """
        Return what finds the run in its tracker again, such as server and run id; empty until it is known.

        Asked after the sink is built and after `open`; kept in the spool. No secrets: it is written to disk.
        """
        ...

    def rejoin(self, address: Mapping[str, str]) -> None:
        """Go on with the run at an address that `address` returned; comes before `open`, if at all."""
        ...
