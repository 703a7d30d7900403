"""
Records on disk, in order, from one writer to one sender: what a sink's tracker has not taken yet.

A record is with the operating system when `append` returns, so that the process can be killed at any moment.
Files are written one after the other and go when the sink has all of them. When they hold more than they may,
the points of the oldest file that is not in use give way; alerts stay.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from trackperf.delivery.cursor import Cursor, CursorFile, Position
from trackperf.delivery.lines import Decoder, kind_of
from trackperf.delivery.manifest import MANIFEST, Manifest, clear, hold, new_folder
from trackperf.delivery.queue import End
from trackperf.delivery.segments import Segment, Segments
from trackperf.errors import ReadError
from trackperf.record import Alert, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from filelock import BaseFileLock

    from trackperf.record import RunInfo

__all__ = ["MAX_BYTES", "Parcel", "Spool"]

MAX_BYTES: Final = 256 * 1024 * 1024
"""What one spool takes on disk before the oldest points give way."""

_HANGING_S: Final = 0.2


@dataclass(slots=True)
class Parcel:
    """What a sink is handed next: points in a row, or one record of another kind."""

    items: Sequence[Point | Alert | End]
    """Points, or one alert, or the end."""

    settle: Callable[[int, bool], None]
    """Told how many of the items are done with, from the first, and whether the sink has them."""


@dataclass(slots=True)
class _Batch:
    """What was read from one file."""

    items: list[Point | Alert | End] = field(default_factory=list)
    ends: list[Position] = field(default_factory=list)


class Spool:
    """
    A folder of records for one sink, held by one process.

    One thread appends, one thread takes and settles; counts may be read by any.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        lock: BaseFileLock | None,
        *,
        max_bytes: int = MAX_BYTES,
        keep: bool = False,
    ) -> None:
        """
        Args:
            folder: its folder; `create` and `take_over` make a spool of it.

            manifest: what it is of.

            lock: the lock that this process holds on it; None where files cannot be locked.

            max_bytes: what it takes on disk before the oldest points give way.

            keep: change nothing on disk, whatever is taken and settled.
        """
        self.folder = folder
        self.manifest = manifest
        self.points = 0
        """Points that are, or were, in it."""
        self.ended = False
        """Whether the run's end is in it."""
        self._lock = lock
        self._cursor_file = CursorFile(folder / "cursor", keep=keep)
        self._keep = keep
        self._segments = Segments(folder, max_bytes=max_bytes, keep=keep)
        self._at = Position(0, 0)
        self._decoder: Decoder | None = None
        self._guard = threading.Lock()

    @classmethod
    def create(
        cls, sink: str, run: RunInfo, address: Mapping[str, str], *, max_bytes: int = MAX_BYTES
    ) -> Spool:
        """
        Make an empty spool in the run's folder.

        Raises:
            OSError: that cannot be done.
        """
        folder = new_folder(run, sink)
        manifest = Manifest(sink=sink, run=run, address=address, pid=os.getpid())
        lock = None
        with contextlib.suppress(OSError):
            # Where nothing can be locked, a folder that was made just now is still this process's own.
            lock = hold(folder)
        try:
            manifest.write(folder)
            return cls(folder, manifest, lock, max_bytes=max_bytes)
        except OSError:
            clear(folder, lock)
            raise

    @classmethod
    def take_over(cls, folder: Path, *, keep: bool = False) -> Spool | None:
        """
        Return the spool that another process left; None when a live process has it.

        Args:
            folder: its folder.

            keep: change nothing in it.

        Raises:
            ReadError: there is none, or it cannot be read.

            OSError: it cannot be locked or written to.
        """
        manifest = Manifest.read(folder)
        lock = hold(folder)
        if lock is None:
            return None
        if not (folder / MANIFEST).exists():
            clear(folder, lock)
            raise ReadError(f"the spool at {str(folder)!r} was delivered just now")
        spool = cls(folder, manifest, lock, keep=keep)
        cursor = spool.cursor
        spool._at = Position(cursor.segment, cursor.offset)
        waiting, spool.ended = spool._segments.look_through(cursor.segment, cursor.offset)
        spool.points = cursor.sent + cursor.lost + waiting
        return spool

    @property
    def cursor(self) -> Cursor:
        """What the sink has, and what is lost."""
        return self._cursor_file.cursor

    @property
    def waiting(self) -> int:
        """Points that the sink has not taken yet."""
        return self.points - self.cursor.sent - self.cursor.lost

    def append(self, record: Sequence[Point] | Alert | End) -> bool:
        """
        Add points, an alert, or the end; return whether older points had to give way.

        Raises:
            OSError: they could not be written; nothing of them is in the spool.
        """
        with self._guard:
            self._segments.append(record, first=self.cursor.segment)
            if isinstance(record, End):
                self.ended = True
            elif not isinstance(record, Alert):
                self.points += len(record)
            gave_way = False
            while number := self._segments.too_much({self._at.segment, self.cursor.segment}):
                points, alerts = self._segments.thin(number)
                self._commit(None, lost=points, lost_alerts=alerts)
                gave_way = True
            return gave_way

    def take(self, limit: int) -> Parcel | None:
        """Return what comes next, up to `limit` points; None when there is nothing."""
        with self._guard:
            while segment := self._segments.get(self._at.segment) or self._next_segment():
                batch = self._read(segment, limit)
                if batch.items:
                    return self._parcel(batch)
                if self._next_segment() is None:
                    return None
            return None

    def describe(self, *, address: Mapping[str, str] | None = None, run: RunInfo | None = None) -> None:
        """
        Keep what is known by now of the run and its place in the tracker.

        Raises:
            OSError: it could not be written.
        """
        with self._guard:
            known = self.manifest
            address = known.address if address is None else address
            self.manifest = replace(known, address=address, run=run or known.run)
            if not self._keep:
                self.manifest.write(self.folder)

    def close(self) -> None:
        """Let go of it; what is in it stays."""
        # Not for ever: on a disk that hangs, another thread may be in there.
        if self._guard.acquire(timeout=_HANGING_S):
            try:
                self._let_go()
                if self._lock is not None:
                    with contextlib.suppress(OSError):
                        self._lock.release()
            finally:
                self._guard.release()

    def remove(self) -> None:
        """Remove it, and the run's folder when nothing else is in that; one that is kept is let go of."""
        if self._keep:
            return self.close()
        with self._guard:
            self._let_go()
            clear(self.folder, self._lock)
            with contextlib.suppress(OSError):
                self.folder.parent.rmdir()
        return None

    def forget(self) -> None:
        """Hold nothing, in a forked child; takes no lock, since whoever held it is not there."""
        self._let_go()

    def _let_go(self) -> None:
        self._segments.close()
        self._cursor_file.close()

    def _next_segment(self) -> Segment | None:
        number = self._segments.after(self._at.segment)
        if number is None:
            return None
        self._at, self._decoder = Position(number, 0), None
        return self._segments.get(number)

    def _read(self, segment: Segment, limit: int) -> _Batch:
        """Read on from where the last batch ended, up to `limit` points or one other record."""
        batch = _Batch()
        decoder, lines = self._open(segment)
        for line, end in lines:
            kind, record = kind_of(line), None
            with contextlib.suppress(ValueError):
                record = decoder.decode(line)
            damaged = record is None and kind != "k"
            if batch.items and (damaged or kind != "p"):
                break
            self._at = Position(self._at.segment, end)
            segment.unread -= kind == "p"
            if damaged:
                self._commit(self._at, lost=int(kind == "p"), lost_alerts=int(kind == "a"))
            elif record is not None:
                batch.items.append(record)
                batch.ends.append(self._at)
            if len(batch.items) >= (limit if kind == "p" else 1):
                break
        return batch

    def _open(self, segment: Segment) -> tuple[Decoder, Iterator[tuple[bytes, int]]]:
        """Return what reads a file's lines, and those from where the last batch ended, with their ends."""
        if self._decoder is None:
            self._decoder = Decoder()
            for line, _ in segment.lines(0, self._at.offset):
                self._decoder.learn(line)
        return self._decoder, segment.lines(self._at.offset)

    def _parcel(self, batch: _Batch) -> Parcel:
        ends = iter(batch.ends)

        def settle(count: int, stored: bool) -> None:
            done = list(itertools.islice(ends, count))
            points = [item for item in batch.items[:count] if isinstance(item, Point)]
            del batch.items[:count]
            with self._guard:
                if points and stored:
                    self._commit(done[-1], sent=len(points), step=points[-1].step)
                elif points:
                    self._commit(done[-1], lost=len(points))
                else:
                    self._commit(done[-1], lost_alerts=0 if stored else count)

        return Parcel(items=tuple(batch.items), settle=settle)

    def _commit(
        self,
        at: Position | None,
        *,
        sent: int = 0,
        lost: int = 0,
        lost_alerts: int = 0,
        step: int | None = None,
    ) -> None:
        was = self.cursor
        place = Position(was.segment, was.offset) if at is None else at
        cursor = Cursor(
            segment=place.segment,
            offset=place.offset,
            sent=was.sent + sent,
            lost=was.lost + lost,
            lost_alerts=was.lost_alerts + lost_alerts,
            step=was.step if step is None else step,
            turn=was.turn + 1,
        )
        with contextlib.suppress(OSError):
            # At worst the same is handed over once more, by another process, which the sink is ready for.
            self._cursor_file.write(cursor)
        self._segments.drop_before(place.segment)
