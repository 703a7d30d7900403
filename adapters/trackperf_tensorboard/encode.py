"""
Points to records, fast.

An event of many values is mostly constant bytes: for each set of keys they are laid out once, and a point
fills in wall time, step and values with one `struct` call. Values are stored as `simple_value`, which is
32 bits: TensorBoard's default loader keeps no more of any scalar, and its own scripts find only these under
`Scalars`. The loss is at most 1 part in 16 million; steps and wall times are stored whole.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from trackperf_tensorboard.events import Framer, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trackperf.record import Point

__all__ = ["EventLayout", "Mark", "PointEncoder"]

_MAX_LAYOUTS: Final = 512
_FLOAT32_MAX: Final = 3.4028234e38


class EventLayout:
    """The constant bytes of an event that holds these keys in this order."""

    __slots__ = ("_args", "_shape", "_structs")

    def __init__(self, keys: Sequence[str], metadata: Mapping[str, bytes]) -> None:
        """
        Args:
            keys: at least one tag.

            metadata: serialised `SummaryMetadata` by tag, for tags that shall carry it.
        """
        chunks: list[bytes] = []
        tail = b""
        for key in keys:
            tag = key.encode("utf-8", "replace")
            body = b"\x0a" + varint(len(tag)) + tag + b"\x15"
            described = metadata.get(key, b"")
            after = b"\x4a" + varint(len(described)) + described if described else b""
            chunks.append(tail + b"\x0a" + varint(len(body) + 4 + len(after)) + body)
            tail = after
        size = sum(map(len, chunks)) + 4 * len(chunks) + len(tail)
        chunks[0] = b"\x2a" + varint(size) + chunks[0]
        self._shape = "".join(f"{len(chunk)}sf" for chunk in chunks) + f"{len(tail)}s"
        self._args: list[bytes | float] = [b"\x09", 0.0, b""]
        for chunk in chunks:
            self._args += (chunk, 0.0)
        self._args.append(tail)
        self._structs: dict[int, struct.Struct] = {}

    def encode(self, step: int, wall_time: float, values: Iterable[float]) -> bytes:
        """Return the event with these values, in the order of the keys."""
        at = b"\x10" + varint(step)
        packer = self._structs.get(len(at))
        if packer is None:
            packer = self._structs[len(at)] = struct.Struct(f"<sd{len(at)}s{self._shape}")
        args = self._args
        args[1] = wall_time
        args[2] = at
        args[4:-1:2] = values
        return packer.pack(*args)


class Mark(NamedTuple):
    """A state that the encoder can be set back to."""

    newest: int
    last: dict[str, int]
    dropped: int


class PointEncoder:
    """Encodes points whose steps rise, tag by tag; what cannot be stored is left out and counted."""

    def __init__(self, describe: Callable[[str], bytes], first_step: int) -> None:
        """
        Args:
            describe: gives the serialised `SummaryMetadata` of a tag, asked at its first value.

            first_step: the lowest step that may come.
        """
        self.dropped = 0
        self._describe = describe
        self._framer = Framer()
        self._layouts: dict[tuple[str, ...], EventLayout] = {}
        self._described: set[str] = set()
        self._newly_described: list[str] = []
        self._first_step = first_step
        self._newest = first_step - 1
        self._last: dict[str, int] = {}
        self._row: tuple[str, ...] = ()
        self._layout: EventLayout | None = None

    def mark(self) -> Mark:
        """Return the state, to go back to when what is encoded next could not be written."""
        self._newly_described.clear()
        self._settle()
        return Mark(self._newest, self._last.copy(), self.dropped)

    def reset(self, mark: Mark) -> None:
        """Go back to the state of the last mark."""
        self._newest, self._last, self.dropped = mark
        self._row, self._layout = (), None
        if self._newly_described:
            self._described.difference_update(self._newly_described)
            self._layouts.clear()

    def encode(self, points: Iterable[Point]) -> bytes:
        """
        Return the records of some points.

        The step of a tag must not go back: TensorBoard's default loader takes that for a restart and
        erases the later points of the tag. Such values are dropped. A tag's second value at a step is
        written; loader and reader let it take the first one's place.
        """
        frame, out = self._framer.frame, list[bytes]()
        for point in points:
            data = self._next_of_row(point) or self._event(point)
            if data:
                out.append(frame(data))
        return b"".join(out)

    def _next_of_row(self, point: Point) -> bytes:
        """Return the event of a point that has the keys of the last one and only numbers; else nothing."""
        step, values = point.step, point.values
        if step <= self._newest or tuple(values) != self._row or self._layout is None:
            return b""
        try:
            if not math.isfinite(sum(values.values())):
                return b""
            data = self._layout.encode(step, point.wall_time, values.values())
        except (TypeError, ValueError, OverflowError, struct.error):
            return b""
        self._newest = step
        return data

    def _event(self, point: Point) -> bytes:
        self._settle()
        step, values = point.step, point.values
        if step <= self._newest:
            values = self._not_too_late(step, values)
        values = self._sound(values)
        if not values:
            return b""
        keys = tuple(values)
        layout = self._layout_of(keys)
        data = layout.encode(step, point.wall_time, values.values())
        self._last.update(dict.fromkeys(keys, step))
        self._newest = max(step, self._newest)
        if step == self._newest and keys in self._layouts:
            self._row, self._layout = keys, layout
        return data

    def _settle(self) -> None:
        """Note the newest step for the keys of the row, which is put off while the keys stay the same."""
        self._last.update(dict.fromkeys(self._row, self._newest))
        self._row, self._layout = (), None

    def _layout_of(self, keys: tuple[str, ...]) -> EventLayout:
        layout = self._layouts.get(keys)
        if layout is None:
            new = [key for key in keys if key not in self._described]
            layout = EventLayout(keys, {key: self._describe(key) for key in new})
            self._described.update(new)
            self._newly_described += new
            if not new:
                if len(self._layouts) >= _MAX_LAYOUTS:
                    self._layouts.clear()
                self._layouts[keys] = layout
        return layout

    def _not_too_late(self, step: int, values: Mapping[str, float]) -> Mapping[str, float]:
        kept = {key: value for key, value in values.items() if step >= self._last.get(key, self._first_step)}
        self.dropped += len(values) - len(kept)
        return kept

    def _sound(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """Return the values that are numbers and fit; the others are counted."""
        sound: dict[str, float] = {}
        for key, value in values.items():
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                continue
            if abs(number) <= _FLOAT32_MAX:
                sound[key] = number
        self.dropped += len(values) - len(sound)
        return sound
