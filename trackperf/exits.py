"""
The ways a process ends, and what each means for its runs.

- The interpreter ends: the run is finished; failed or killed where an exception or an interrupt was why.
- SIGTERM, or SIGINT where it kills: the run is closed as killed, then the signal does what it did before.
- A handler of the user's own: what there is gets flushed, the handler runs, and the run goes on if it may.
- A forked child: nothing; its runs belong to the parent.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

from trackperf.record import Status

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["come_first", "ending", "live", "watch"]


class Ending(Protocol):
    """A run that can be brought to its end."""

    def finish(self, status: Status, *, count_open: bool = False) -> None:
        """End the run, within a limit of time, once."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Hand over what there is, within a limit of time."""
        ...


_LIVE: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_FLUSH_S: Final = 2.0
_previous: dict[int, Any] = {}
_handling = False
_registered = False
_exiting = False


def watch(run: Ending) -> None:
    """Bring `run` to its end when the process ends; it is forgotten when nothing else holds it."""
    global _registered  # noqa: PLW0603 - one exit hook a process
    _LIVE.add(run)
    if not _registered:
        _registered = True
        atexit.register(_at_exit)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            _install(number)


def forget(run: Ending) -> None:
    """Leave `run` alone from now on; with the last one the signal handlers are put back."""
    _LIVE.discard(run)
    if len(_LIVE) == 0 and threading.current_thread() is threading.main_thread():
        for number in list(_previous):
            if signal.getsignal(number) is _on_signal:
                signal.signal(number, _previous.pop(number))


def live() -> list[Any]:
    """Return the runs that have not ended, for a sink whose tracker ends before them."""
    return list(_LIVE)


def ending() -> bool:
    """Whether the process is at its end: no code of the user's follows on the main thread."""
    return _exiting or _handling


def come_first() -> None:
    """Run the exit hook before all that are registered so far, such as a tracker's own."""
    if _registered and not _exiting:
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)


def _install(number: int) -> None:
    current = signal.getsignal(number)
    # An interrupt that raises comes to the exit hook by itself; an ignored signal stays ignored; a handler
    # that was not set from Python cannot be put back.
    if current not in (_on_signal, signal.default_int_handler, signal.SIG_IGN, None):
        _previous[number] = current
        signal.signal(number, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _handling  # noqa: PLW0603 - a signal can come while it is handled
    previous = _previous.get(number, signal.SIG_DFL)
    again, _handling = _handling, True
    try:
        if not again:
            for run in list(_LIVE):
                if callable(previous):
                    run.flush(_FLUSH_S)
                else:
                    run.finish(Status.KILLED)
    finally:
        _handling = again
    if callable(previous):
        previous(number, frame)
    else:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _at_exit() -> None:
    global _exiting  # noqa: PLW0603 - the process ends once
    _exiting = True
    status = Status.FINISHED
    if not hasattr(sys, "ps1"):
        # Set by the interpreter when an exception ended the script.
        kind = getattr(sys, "last_type", None)
        if kind is not None:
            status = Status.KILLED if issubclass(kind, KeyboardInterrupt) else Status.FAILED
    for run in list(_LIVE):
        run.finish(status)
