"""
A spool's lines: eight hexadecimal digits of checksum, a space, a JSON array whose first item says its kind.

`k` names the keys of points once, so that a point (`p`) is the number of its key list, step, wall time and
values; `a` is an alert, `e` the end of the run. Each file is whole in itself: key lists begin anew in it.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from typing import TYPE_CHECKING, Any, Final

from trackperf.codec import from_json, to_json
from trackperf.delivery.queue import End
from trackperf.record import Alert, Point, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Decoder", "Encoder", "alert_line", "end_line", "kind_of", "sealed", "unsealed"]

_SEAL: Final = 9


def sealed(body: str) -> bytes:
    """Return a line: checksum, body, newline."""
    data = body.encode("utf-8", "backslashreplace")
    return b"%08x %s\n" % (zlib.crc32(data), data)


def unsealed(line: bytes) -> bytes:
    """
    Return the body of a line.

    Raises:
        ValueError: it is not what was written.
    """
    body = line[_SEAL:].rstrip(b"\n")
    if line[:_SEAL] != b"%08x " % zlib.crc32(body):
        raise ValueError(f"a damaged line: {line[:40]!r}")
    return body


def kind_of(line: bytes) -> str:
    """Return what a line looks to be: `k`, `a`, `e`, or else `p`, also where it is damaged."""
    mark = line[_SEAL : _SEAL + 4]
    return {b'["k"': "k", b'["a"': "a", b'["e"': "e"}.get(mark, "p")


class Encoder:
    """Makes the lines of one file."""

    def __init__(self) -> None:
        self._lists: dict[tuple[str, ...], int] = {}

    def points(self, points: Iterable[Point]) -> bytes:
        """Return lines for points, with those of key lists that are new."""
        lines: list[bytes] = []
        for point in points:
            keys = tuple(point.values)
            number = self._lists.get(keys)
            if number is None:
                number = self._lists[keys] = len(self._lists)
                lines.append(sealed(_compact(["k", number, keys])))
            values = [float(value) for value in point.values.values()]
            lines.append(sealed(_compact(["p", number, int(point.step), float(point.wall_time), values])))
        return b"".join(lines)

    def forget(self) -> None:
        """Name the keys anew: what was returned last was not written."""
        self._lists.clear()


def alert_line(alert: Alert) -> bytes:
    """Return the line of an alert."""
    return sealed(f'["a",{to_json(alert)}]')


def end_line(end: End) -> bytes:
    """Return the line of a run's end."""
    return sealed(f'["e",{json.dumps(end.status.value)},{to_json(end.summary)}]')


class Decoder:
    """Reads the lines of one file, in order."""

    def __init__(self) -> None:
        self._lists: dict[int, tuple[str, ...]] = {}

    def learn(self, line: bytes) -> None:
        """Take the keys that a line names, if it does; for lines that are passed over."""
        if kind_of(line) == "k":
            with contextlib.suppress(ValueError):
                self.decode(line)

    def decode(self, line: bytes) -> Point | Alert | End | None:
        """
        Return what a line holds; None when it only names keys.

        Raises:
            ValueError: it is damaged, or of a kind that this version does not know.
        """
        try:
            kind, *rest = json.loads(unsealed(line))
            if kind == "k":
                self._lists[rest[0]] = tuple(rest[1])
                return None
            return self._record(kind, rest)
        except (KeyError, IndexError, TypeError, RecursionError) as error:
            raise ValueError(f"a damaged line: {error!r}") from error

    def _record(self, kind: Any, rest: list[Any]) -> Point | Alert | End:
        if kind == "p":
            number, step, wall_time, values = rest
            pairs = dict(zip(self._lists[number], values, strict=True))
            return Point(step=step, wall_time=wall_time, values=pairs)
        if kind == "a":
            return from_json(Alert, json.dumps(rest[0]))
        if kind == "e":
            return End(summary=from_json(RunSummary, json.dumps(rest[1])), status=Status(rest[0]))
        raise ValueError(f"a line of an unknown kind: {kind!r}")


def _compact(value: list[Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
