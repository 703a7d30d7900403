"""What the log says about one spooled sink, each thing once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trackperf.text import count

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Notices"]

_log = logging.getLogger("trackperf")


class Notices:
    """The words, and what was said already."""

    def __init__(self, name: str) -> None:
        """
        Args:
            name: name of the sink.
        """
        self._name = name
        self._no_disk = False
        self._over = False

    def no_disk(self, error: OSError) -> None:
        """Nothing can be written; said again only after something could."""
        if not self._no_disk:
            self._no_disk = True
            _log.warning(
                "trackperf: sink %s: nothing can be kept on disk: %s. Training goes on; while %s is away, "
                "only a little is kept in memory",
                self._name,
                error,
                self._name,
            )

    def disk(self) -> None:
        """Something could be written."""
        self._no_disk = False

    def over(self, folder: Path, max_bytes: int) -> None:
        """The spool has taken all the room that it may."""
        if not self._over:
            self._over = True
            _log.warning(
                "trackperf: sink %s: its spool %s is full (%.0f MiB): the oldest points are lost",
                self._name,
                folder,
                max_bytes / 2**20,
            )

    def no_thread(self, error: RuntimeError) -> None:
        """Nothing will be sent by this process."""
        _log.warning("trackperf: sink %s: no thread could be started to send: %s", self._name, error)

    def refused(self) -> None:
        """The sink did not open."""
        _log.warning("trackperf: sink %s is switched off; what it would have got stays on disk", self._name)

    def broken(self, error: Exception) -> None:
        """The spool itself failed."""
        _log.warning("trackperf: sink %s: its spool cannot be read", self._name, exc_info=error)

    def lost(self, points: int, alerts: int, why: str) -> None:
        """At the end: what the sink does not get."""
        whats = [
            f"{count(number)} {noun}{'s' * (number != 1)}"
            for number, noun in ((points, "point"), (alerts, "alert"))
            if number
        ]
        if whats:
            reason = why or "the spool was full, or damaged"
            _log.warning("trackperf: sink %s: not delivered: %s: %s", self._name, " and ".join(whats), reason)

    def waiting(self, points: int, folder: Path, why: str) -> None:
        """At the end: what waits, where, and what to do."""
        what = "the end of the run waits"
        if points:
            what = "1 point waits" if points == 1 else f"{count(points)} points wait"
        _log.warning(
            "trackperf: sink %s: %s in %s (%s). To send: trackperf sync %s",
            self._name,
            what,
            folder,
            why or "there was no time",
            folder.parent,
        )
