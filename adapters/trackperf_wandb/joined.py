"""
The user's own run, with us as a guest: his rows keep their steps, and ours come along.

W&B numbers rows by one counter, and drops a row of the user's whose number it has passed. So while he may
still log, ours ride on rows of his (`commit=False`), one point a row, and the rest waits. When he can log no
more - his run finishes, or the process ends - the rest is written in rows of our own, after his last.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from trackperf import exits
from trackperf_wandb.rows import row_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackperf.record import Point

__all__ = ["JoinedRun"]

_log = logging.getLogger("trackperf")

MAX_VALUES: Final = 500_000
"""How many values wait for rows of the user's, at most: some 60 megabytes."""

_TOLD: Final = 100
_LOCK_S: Final = 2.0
_FLUSH_S: Final = 2.0


class JoinedRun:
    """A W&B run that is the user's: never finished here, never moved forward while he may log."""

    def __init__(
        self,
        run: Any,
        prefix: str,
        *,
        at_finish: Callable[[], None] = lambda: None,
        max_values: int = MAX_VALUES,
    ) -> None:
        """
        Args:
            run: the user's run.

            prefix: what our keys begin with.

            at_finish: called when the user finishes the run, with all points so far written.

            max_values: how many values wait at most, before the oldest points give way.
        """
        self.run = run
        self.gone = False
        self.lost = 0
        """Points that had to give way."""
        self._prefix = prefix
        self._at_finish = at_finish
        self._max_values = max_values
        self._waiting: deque[dict[str, Any]] = deque()
        self._values = 0
        self._row = -1
        self._told = False
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._numbered = getattr(run.settings, "mode", "") != "shared"
        self._hooked = _hook(run, self._before_finish)

    def require_live(self) -> None:
        """
        See to it that the run still takes something.

        Raises:
            RuntimeError: the user has finished it.
        """
        if self.gone or getattr(self.run, "_is_finished", False):
            self.gone = True
            raise RuntimeError(
                f"the W&B run {self.run.id!r} was finished before trackperf was; "
                "call perf.finish() before wandb.finish() to have all of it there"
            )

    def log(self, point: Point, extra: dict[str, Any]) -> int:
        """Write a point, or let it wait; return how many of its values could not be written."""
        row, dropped = row_of(point, joined=self._prefix)
        with self._lock:
            self._waiting.append({**row, **extra})
            self._values += len(row)
            while self._values > self._max_values and len(self._waiting) > 1:
                self._values -= len(self._waiting.popleft())
                self.lost += 1
            self._ride()
        self._tell()
        return dropped

    def close(self) -> None:
        """Write what waits if the user can log no more, else leave it to the end of his run."""
        if exits.ending() or not self._hooked:
            self._write_rest()
        elif self._waiting:
            # Registered now, it runs before W&B's own hook, which closes the run.
            atexit.register(self._write_rest)

    def _ride(self) -> None:
        """Put the oldest point on the user's next row, if that has none of ours yet."""
        if not self._numbered:
            while self._waiting:
                self._send(commit=True)
        elif int(self.run.step) > self._row:
            self._send(commit=False)
            # Asked again: he may have logged in between, and ours is then on a later row.
            self._row = int(self.run.step)

    def _send(self, *, commit: bool) -> None:
        row = self._waiting.popleft()
        self._values -= len(row)
        self.run.log(row, commit=commit)

    def _write_rest(self) -> None:
        """Write what waits, in rows after the user's last, and say what could not be."""
        if os.getpid() != self._pid or self.gone:
            return
        if not self._lock.acquire(timeout=_LOCK_S):
            _log.warning("trackperf: W&B does not come back; %d points are lost", len(self._waiting))
            return
        try:
            if self._waiting and self._numbered and int(self.run.step) == self._row:
                # Ours is on that row already, and what comes to the same row takes its place.
                self.run.log({}, commit=True)
            while self._waiting:
                self._send(commit=True)
        except Exception:  # noqa: BLE001 - the user's run and process end whatever happens here
            lost = len(self._waiting) + 1
            _log.warning("trackperf: %d points could not be written to the W&B run", lost, exc_info=True)
        finally:
            self._lock.release()

    def _before_finish(self) -> None:
        """Do what is left when the user finishes his run, on his thread."""
        if os.getpid() != self._pid or self.gone:
            return
        try:
            for live in exits.live():
                live.flush(_FLUSH_S)
            self._write_rest()
            self._at_finish()
        except Exception:  # noqa: BLE001 - as above
            _log.warning("trackperf: the end could not be written to the W&B run", exc_info=True)
        finally:
            self.gone = True
            atexit.unregister(self._write_rest)

    def _tell(self) -> None:
        if len(self._waiting) >= _TOLD and not self._told:
            self._told = True
            _log.warning(
                "trackperf: your W&B run gets rows more rarely than trackperf has points: one rides on each "
                "row, the rest is written when the run finishes. To see them at once, give trackperf a run "
                "of its own beside yours: sink=WandbSink(join=False)"
            )


def _hook(run: Any, call: Callable[[], None]) -> bool:
    """Have `call` called when the run is about to finish; return whether that is possible."""
    try:
        from wandb.sdk.wandb_run import TeardownHook, TeardownStage

        run._teardown_hooks.append(TeardownHook(call, TeardownStage.EARLY))  # noqa: SLF001 - no public way
    except (ImportError, AttributeError):
        return False
    return True
