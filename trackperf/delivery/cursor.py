"""How far a spool's sink is: a small file that holds through a kill, and on a disk that is full."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final, NamedTuple

from trackperf.delivery.lines import sealed, unsealed

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Cursor", "CursorFile", "Position"]

_SLOT: Final = 256


class Position(NamedTuple):
    """A place in a spool, between two lines."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What the sink has taken, and what it never will."""

    segment: int = 0
    """Number of the file that comes next, or is in use."""

    offset: int = 0
    """Bytes of it that are done with."""

    sent: int = 0
    """Points that the sink has."""

    lost: int = 0
    """Points that it does not get: refused, given up for room, damaged."""

    lost_alerts: int = 0
    """Alerts that it does not get."""

    step: int = 0
    """Step of the last point that the sink has."""

    turn: int = 0
    """How often the cursor was written."""


class CursorFile:
    """
    Two slots that are written in turn, each with its checksum: one is always whole.

    Its room is taken when it is made, so that a full disk cannot keep the cursor from moving on.
    """

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        """
        Args:
            path: the file.

            keep: leave it as it is; only the cursor in memory moves on.
        """
        self._keep = keep
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.cursor = self._newest()
        """The cursor as it stands."""

    def write(self, cursor: Cursor) -> None:
        """Write the cursor over the older of the two slots."""
        self.cursor = cursor
        if self._keep:
            return
        line = sealed(json.dumps(asdict(cursor), separators=(",", ":")).ljust(_SLOT - 10))
        os.pwrite(self._fd, line, cursor.turn % 2 * _SLOT)

    def close(self) -> None:
        """Let go of the file; also in a forked child, where nothing is shared but the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _newest(self) -> Cursor:
        data = os.pread(self._fd, 2 * _SLOT, 0)
        if not data:
            os.pwrite(self._fd, b"\n" * (2 * _SLOT), 0)
        found = [Cursor()]
        for first in (0, _SLOT):
            with contextlib.suppress(ValueError, TypeError, LookupError):
                loaded = json.loads(unsealed(data[first : first + _SLOT]))
                found.append(Cursor(**{field.name: int(loaded[field.name]) for field in fields(Cursor)}))
        return max(found, key=lambda cursor: cursor.turn)
