"""The files of a spool: one after the other, each written once and whole in itself."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trackperf.delivery.lines import Encoder, alert_line, end_line, kind_of
from trackperf.delivery.queue import End
from trackperf.record import Alert

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trackperf.record import Point

__all__ = ["Segment", "Segments"]

_BYTES: Final = 4 * 1024 * 1024
_SUFFIX: Final = ".jsonl"


@dataclass(slots=True)
class Segment:
    """One file: how long its sound part is, and how many points in it were not read yet."""

    path: Path
    length: int = 0
    unread: int = 0

    def lines(self, start: int, end: int | None = None) -> Iterator[tuple[bytes, int]]:
        """Yield whole lines and where they end; a line that was cut when its writer died is none."""
        end = self.length if end is None else end
        with self.path.open("rb") as file:
            file.seek(start)
            while start < end and (line := file.readline()).endswith(b"\n"):
                start += len(line)
                yield line, start


class Segments:
    """All files of one spool, by number."""

    def __init__(self, folder: Path, *, max_bytes: int, keep: bool) -> None:
        """
        Args:
            folder: where they are.

            max_bytes: what all of them take, at most, of which each is a part.

            keep: change nothing on disk.
        """
        self.folder = folder
        self._max_bytes = max_bytes
        self._each_bytes = min(_BYTES, max(1, max_bytes // 16))
        self._keep = keep
        self._files: dict[int, Segment] = {}
        self._encoder = Encoder()
        self._fd = -1

    def get(self, number: int) -> Segment | None:
        """Return a file; None when there is none of that number."""
        return self._files.get(number)

    def after(self, number: int) -> int | None:
        """Return the number of the file that comes after another; None after the last."""
        return min((later for later in self._files if later > number), default=None)

    def append(self, record: Sequence[Point] | Alert | End, *, first: int) -> None:
        """
        Write a record to the last file, or to a new one when that is full.

        Args:
            record: points, an alert, or the end.

            first: what the number of the first file comes after.

        Raises:
            OSError: it could not be written; nothing of it stands.
        """
        segment = self._current(first)
        if isinstance(record, Alert):
            self._write(segment, alert_line(record))
        elif isinstance(record, End):
            self._write(segment, end_line(record))
        else:
            self._write(segment, self._encoder.points(record))
            segment.unread += len(record)

    def too_much(self, in_use: set[int]) -> int | None:
        """Return the number of the oldest file whose points are to give way; None while there is room."""
        if sum(segment.length for segment in self._files.values()) <= self._max_bytes:
            return None
        in_use = {*in_use, max(self._files)}
        able = (number for number, one in self._files.items() if one.unread and number not in in_use)
        return min(able, default=None)

    def thin(self, number: int) -> tuple[int, int]:
        """Take the points out of a file that nobody reads or writes; return how many, and alerts lost."""
        segment, alerts, kept = self._files[number], 0, b""
        try:
            lines = segment.path.read_bytes()[: segment.length].splitlines(keepends=True)
            of_alerts = [line for line in lines if kind_of(line) == "a"]
            alerts, kept = len(of_alerts), b"".join(of_alerts)
            if kept:
                part = segment.path.with_suffix(".part")
                part.write_bytes(kept)
                part.replace(segment.path)
                alerts = 0
        except OSError:
            kept = b""
        points, segment.unread, segment.length = segment.unread, 0, len(kept)
        if not kept:
            self._drop(number)
        return points, alerts

    def drop_before(self, number: int) -> None:
        """Remove the files below a number."""
        for done in [done for done in self._files if done < number]:
            self._drop(done)

    def look_through(self, first: int, offset: int) -> tuple[int, bool]:
        """
        Take stock of what another process left; return how many points wait, and whether the end is there.

        Args:
            first: the first file that is not done with.

            offset: how many bytes of it are.
        """
        points, ended = 0, False
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            number = int(path.stem) if path.stem.isdecimal() else -1
            if number >= first:
                segment = self._files[number] = Segment(path, length=path.stat().st_size)
                kinds = [kind_of(line) for line, _ in segment.lines(offset if number == first else 0)]
                segment.unread = kinds.count("p")
                points, ended = points + segment.unread, ended or "e" in kinds
        return points, ended

    def close(self) -> None:
        """Write no more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _current(self, first: int) -> Segment:
        last = max(self._files, default=first)
        if self._fd >= 0 and self._files[last].length < self._each_bytes:
            return self._files[last]
        path = self.folder / f"{last + 1:06d}{_SUFFIX}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self.close()
        self._fd, self._encoder = fd, Encoder()
        self._files[last + 1] = Segment(path)
        return self._files[last + 1]

    def _write(self, segment: Segment, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            self._encoder.forget()
            try:
                os.ftruncate(self._fd, segment.length)
            except OSError:
                # What stands behind the sound part is never read; the next record goes to a new file.
                self.close()
            raise
        segment.length += len(data)

    def _drop(self, number: int) -> None:
        segment = self._files.pop(number)
        if not self._keep:
            with contextlib.suppress(OSError):
                segment.path.unlink()
