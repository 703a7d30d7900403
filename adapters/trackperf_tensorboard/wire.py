"""
The bytes of the usual event: a wall time, a step, and named 32-bit values.

`simple_shape` finds where the changing bytes of such an event are. Everything else that an event may be
is left to the protocol-buffer classes.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Shape", "read_varint", "simple_shape"]


class Shape(NamedTuple):
    """Where the numbers of an event are: events of one shape differ in nothing else."""

    size: int
    """Bytes of the event."""

    step_size: int
    """Bytes of the step, which begin at byte 10; 0 where there are none, for step 0."""

    tags: tuple[bytes, ...]
    """Tags, in order."""

    values_at: tuple[int, ...]
    """Where each tag's value begins."""


WALL_AT = 1
"""Where the wall time begins."""

STEP_AT = 10
"""Where the step begins."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """
    Return the number that begins at a place, and the place after it.

    Raises:
        IndexError: the data end before it does.
    """
    byte = data[at]
    number, shift = byte & 0x7F, 7
    while byte > 0x7F:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        shift += 7
    return number, at + 1


def simple_shape(data: bytes) -> Shape | None:
    """Return the shape of an event that is a wall time, a step and plain scalars; None for any other."""
    try:
        return _shape(data)
    except IndexError:
        return None


def _shape(data: bytes) -> Shape | None:
    end = len(data)
    if data[0] != 0x09:
        return None
    at, step_size = 9, 0
    if data[9] == 0x10:
        at = read_varint(data, STEP_AT)[1]
        step_size = at - STEP_AT
    if data[at] != 0x2A:
        return None
    size, at = read_varint(data, at + 1)
    if at + size != end:
        return None
    tags: list[bytes] = []
    places: list[int] = []
    while at < end:
        size, tag_at = read_varint(data, at + 1)
        after = tag_at + size
        size, text_at = read_varint(data, tag_at + 1)
        value_at = text_at + size
        plain = data[at] == 0x0A and data[tag_at] == 0x0A and data[value_at] == 0x15
        if not plain or value_at + 5 != after or after > end:
            return None
        tags.append(data[text_at:value_at])
        places.append(value_at + 1)
        at = after
    return Shape(end, step_size, tuple(tags), tuple(places)) if tags else None
