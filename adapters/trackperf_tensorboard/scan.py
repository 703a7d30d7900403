"""
One event file read from beginning to end: every record, its checksums verified.

What is cut or damaged is left out and told; what comes after it is read, wherever a record's beginning
can be made out again.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trackperf_tensorboard.columns import Columns
from trackperf_tensorboard.events import crc32c, masked
from trackperf_tensorboard.stripe import HEAD, TAIL, Stripe
from trackperf_tensorboard.wire import STEP_AT, WALL_AT, Shape, read_varint, simple_shape

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

__all__ = ["FileScan"]

_BLOCK: Final = 1 << 24
_MAX_PERIOD: Final = 64
_FEW_ROWS: Final = 16
_MAX_PAUSE: Final = 2048
_MAX_STRIPES: Final = 64
_MAX_TRAIL: Final = 4096
_MAX_READ: Final = 1 << 26
_LENGTH: Final = re.compile(rb"(?!\0\0\0)[\s\S]{3}\0{5}")
"""A length below 16 MiB, other than 0."""


class FileScan:
    """
    What is in one event file.

    Scalars end up in `columns`; any other event is handed on.
    """

    def __init__(self, path: Path, other: Callable[[Any, Columns], None]) -> None:
        """
        Args:
            path: the file.

            other: takes each event that is not plain scalars, parsed, and the columns.
        """
        self.columns = Columns()
        self.records = 0
        self.lost = 0
        self.skipped_bytes = 0
        self.cut_bytes = 0
        self._path = path
        self._other = other
        self._crc = crc32c()
        self._buffer = b""
        self._at = 0
        self._heads: dict[bytes, int] = {}
        self._stripes: dict[tuple[Shape, ...], Stripe] = {}
        self._trail: list[tuple[Shape, int]] = []
        self._seen: dict[Shape, int] = {}
        self._astray = False
        self._pause = 0
        self._next_pause = 0

    def run(self) -> None:
        """
        Read the file.

        Raises:
            OSError: it cannot be opened or read.
        """
        with self._path.open("rb") as file:
            while True:
                if self._next(file):
                    continue
                if not self._refill(file, _BLOCK):
                    break
        rest = len(self._buffer) - self._at
        if self._astray:
            self.skipped_bytes += rest
        else:
            self.cut_bytes = rest

    def problems(self) -> list[str]:
        """Return what is wrong with the file, a sentence each."""
        name, out = self._path.name, []
        if self.lost:
            out.append(f"{name} is damaged: {self.lost} records have a wrong checksum and were left out")
        if self.skipped_bytes:
            out.append(f"{name} is damaged: {self.skipped_bytes} bytes are no records and were left out")
        if self.cut_bytes:
            out.append(f"{name} is cut: its last record is incomplete and was left out")
        return out

    def _refill(self, file: BinaryIO, size: int) -> bool:
        more = file.read(size)
        if more:
            self._buffer = self._buffer[self._at :] + more
            self._at = 0
            self._forget_trail()
        return bool(more)

    def _next(self, file: BinaryIO) -> bool:
        """Read the record at the current place, or what follows its pattern; False where the buffer ends."""
        start = self._at
        head = self._buffer[start : start + HEAD]
        size = self._heads.get(head)
        if size is None:
            if len(head) < HEAD:
                return False
            size = self._new_head(head)
            if size is None:
                return self._resynchronise()
        stop = start + HEAD + size
        if stop + TAIL > len(self._buffer):
            return size >= _BLOCK and self._refill(file, min(size + TAIL, _MAX_READ))
        data = self._buffer[start + HEAD : stop]
        self._at = stop + TAIL
        if masked(self._crc(data)) != int.from_bytes(self._buffer[stop : stop + TAIL], "little"):
            self.lost += 1
            self._forget_trail()
            return True
        self.records += 1
        self._astray = False
        shape = simple_shape(data)
        if shape is None:
            self._forget_trail()
            self._parse(data)
            return True
        self._add(data, shape)
        self._follow(shape, start)
        return True

    def _new_head(self, head: bytes) -> int | None:
        if masked(self._crc(head[:8])) != int.from_bytes(head[8:], "little"):
            return None
        size = int.from_bytes(head[:8], "little")
        if len(self._heads) < 4096:
            self._heads[head] = size
        return size

    def _parse(self, data: bytes) -> None:
        from tensorboard.compat.proto import event_pb2

        try:
            event = event_pb2.Event.FromString(data)
        except Exception:  # noqa: BLE001 - the sum is right, the content is no event
            self.lost += 1
            return
        self._other(event, self.columns)

    def _add(self, data: bytes, shape: Shape) -> None:
        (wall_time,) = struct.unpack_from("<d", data, WALL_AT)
        step = read_varint(data, STEP_AT)[0] if shape.step_size else 0
        if step >= 1 << 63:
            step -= 1 << 64
        for tag, at in zip(shape.tags, shape.values_at, strict=True):
            self.columns.add(tag, step, wall_time, struct.unpack_from("<f", data, at)[0])

    def _follow(self, shape: Shape, start: int) -> None:
        """Read all that follows at once where the last records have begun to repeat themselves."""
        before, index = self._seen.get(shape), len(self._trail)
        self._seen[shape] = index
        self._trail.append((shape, start))
        if self._pause:
            self._pause -= 1
        elif before is not None and index - before <= _MAX_PERIOD:
            period = self._trail[before + 1 :]
            stripe = self._stripe(tuple(past for past, _ in period), period[0][1])
            rows = stripe.take(np.frombuffer(self._buffer, np.uint8)[self._at :], self.columns)
            self._at += rows * stripe.size
            self.records += rows * len(period)
            if rows:
                self._forget_trail()
            if rows >= _FEW_ROWS:
                self._next_pause = 0
            else:
                # A file without long rows shall not pay for looking for them again and again.
                self._next_pause = min(2 * self._next_pause + _FEW_ROWS, _MAX_PAUSE)
                self._pause = self._next_pause
        if index > _MAX_TRAIL:
            self._forget_trail()

    def _stripe(self, shapes: tuple[Shape, ...], first: int) -> Stripe:
        stripe = self._stripes.get(shapes)
        if stripe is None:
            if len(self._stripes) >= _MAX_STRIPES:
                self._stripes.clear()
            stripe = self._stripes[shapes] = Stripe(self._buffer[first : self._at], shapes, self._crc)
        return stripe

    def _forget_trail(self) -> None:
        self._trail.clear()
        self._seen.clear()

    def _resynchronise(self) -> bool:
        """Go on at the next place that has a length with the right checksum."""
        start = self._at
        self._astray = True
        self._forget_trail()
        at = start + 1
        while found := _LENGTH.search(self._buffer, at):
            at = found.start()
            head = self._buffer[at : at + HEAD]
            if len(head) == HEAD and self._new_head(head) is not None:
                self._at = at
                self.skipped_bytes += at - start
                return True
            at += 1
        self._at = max(start + 1, len(self._buffer) - HEAD + 1)
        self.skipped_bytes += self._at - start
        return False
