"""
Many records of one pattern at once.

Files of scalars are long rows of records that differ in a few bytes: time, step, values, checksum. Seen as
a table with one pattern a row, the constant bytes are compared and the numbers taken out a column at a
time. The checksum is verified for every record all the same: CRC-32C is linear, so that the checksum of a
row is that of the first one, corrected by one table look-up for each byte that may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from trackperf_tensorboard.wire import STEP_AT, WALL_AT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from trackperf_tensorboard.columns import Columns
    from trackperf_tensorboard.wire import Shape

__all__ = ["Stripe"]

HEAD: Final = 12
"""Bytes before a record's data."""

TAIL: Final = 4
"""Bytes after a record's data."""

_PROBE: Final = 32
_CHUNK_BYTES: Final = 1 << 19
_MASK_DELTA: Final = 0xA282EAD8


class Stripe:
    """A pattern of one or several records in a row, read from an example whose checksums are right."""

    def __init__(self, example: bytes, shapes: Sequence[Shape], crc: Callable[[bytes], int]) -> None:
        """
        Args:
            example: the records, whole, one after the other.

            shapes: the shape of each.

            crc: the CRC-32C of some bytes.
        """
        self.size = len(example)
        self._pattern = np.frombuffer(example, np.uint8)
        self._mask = np.full(self.size, 0xFF, np.uint8)
        self._records: list[_Record] = []
        at = 0
        for shape in shapes:
            record = _Record(example, at + HEAD, shape, crc)
            self._mask[record.changing] = 0
            self._mask[record.step] = 0x80
            self._mask[record.crc] = 0
            self._records.append(record)
            at += HEAD + shape.size + TAIL

    def take(self, block: NDArray[np.uint8], columns: Columns) -> int:
        """
        Read rows from the beginning of a block for as long as they follow the pattern and are sound.

        Returns the number of rows read.
        """
        total, done = block.size // self.size, 0
        limit = _PROBE
        while done < total:
            wanted = min(limit, total - done)
            part = block[done * self.size : (done + wanted) * self.size].reshape(wanted, self.size)
            good = self._matching(part)
            for record in self._records:
                good = record.sound(part[:good])
            for record in self._records:
                record.read(part[:good], columns)
            done += good
            if good < wanted:
                break
            limit = max(_PROBE, _CHUNK_BYTES // self.size)
        return done

    def _matching(self, rows: NDArray[np.uint8]) -> int:
        differs = rows ^ self._pattern
        differs &= self._mask
        if not differs.any():
            return len(rows)
        return int(differs.any(axis=1).argmax())


class _Record:
    """One record of the pattern: where its numbers are, and its checksum's tables."""

    def __init__(self, example: bytes, at: int, shape: Shape, crc: Callable[[bytes], int]) -> None:
        data = example[at : at + shape.size]
        self.tags = shape.tags
        self.wall = slice(at + WALL_AT, at + WALL_AT + 8)
        self.step = slice(at + STEP_AT, at + STEP_AT + shape.step_size)
        self.values = [slice(at + value_at, at + value_at + 4) for value_at in shape.values_at]
        self.crc = slice(at + shape.size, at + shape.size + TAIL)
        inside = list(_changing(shape))
        self.changing = np.array(inside) + at
        self._tables = [_table(crc, shape.size - place - 1, data[place]) for place in inside]
        self._tables[0] ^= np.uint32(crc(data))

    def sound(self, rows: NDArray[np.uint8]) -> int:
        """Return the number of rows, from the first on, whose checksum is right."""
        places = self.changing
        total = self._tables[0][rows[:, places[0]]]
        for table, place in zip(self._tables[1:], places[1:], strict=True):
            total ^= table[rows[:, place]]
        total = (total >> np.uint32(15)) | (total << np.uint32(17))
        total += np.uint32(_MASK_DELTA)
        wrong = total != _as(rows[:, self.crc], "<u4")
        return int(wrong.argmax()) if wrong.any() else len(rows)

    def read(self, rows: NDArray[np.uint8], columns: Columns) -> None:
        """Add the rows' points to the columns."""
        if not len(rows):
            return
        walls = _as(rows[:, self.wall], "<f8").astype(np.float64)
        steps = np.zeros(len(rows), np.uint64)
        for shift, column in enumerate(rows[:, self.step].T):
            steps |= (column & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * shift)
        signed = steps.view(np.int64)
        for tag, place in zip(self.tags, self.values, strict=True):
            columns.extend(tag, signed, walls, _as(rows[:, place], "<f4").astype(np.float64))


def _changing(shape: Shape) -> Iterator[int]:
    yield from range(WALL_AT, WALL_AT + 8)
    yield from range(STEP_AT, STEP_AT + shape.step_size)
    for value_at in shape.values_at:
        yield from range(value_at, value_at + 4)


def _as(columns: NDArray[np.uint8], kind: str) -> NDArray[np.generic]:
    """Return some neighbouring columns of bytes as one column of numbers."""
    return np.ascontiguousarray(columns).view(kind)[:, 0]


def _table(crc: Callable[[bytes], int], after: int, example: int) -> NDArray[np.uint32]:
    """Return what each value of a byte, `after` bytes before the end, changes in the checksum."""
    nothing = crc(bytes(after + 1))
    table = np.zeros(256, np.uint32)
    for bit in range(8):
        effect = crc(bytes([1 << bit]) + bytes(after)) ^ nothing
        table[1 << bit : 2 << bit] = table[: 1 << bit] ^ np.uint32(effect)
    folded: NDArray[np.uint32] = table[np.arange(256) ^ example]
    return folded
