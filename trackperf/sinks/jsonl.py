"""
A run as lines of JSON in one file: readable by anything, and written so that a kill costs nothing.

Each line is an object with a `type`: `run` (a process began the run, or took it over at `resume_step`),
`point`, `alert`, or `end` (status and summary).
"""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from trackperf.codec import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trackperf.history import RunHistory
    from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

__all__ = ["FILE_NAME", "JsonlReader", "JsonlSink"]

_log = logging.getLogger("trackperf")

FILE_NAME: Final = "trackperf.jsonl"
"""Name of the file in the run's folder."""

_HEAD: Final = b'{"type":"run"'


class JsonlSink:
    """
    Appends to `<dir>/<name>/trackperf.jsonl`, each batch with one write to the system.

    A file that holds another run is never touched: a new run takes a free name beside it.
    """

    name = "jsonl"
    """Name of the sink."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """
        Args:
            path: the file; in the run's own folder when not given.
        """
        self._path = None if path is None else Path(path)
        self._file: BinaryIO | None = None
        self._cut = False

    def open(self, run: RunInfo) -> None:
        """Open the file, or go on with it when the run is resumed."""
        path = self._path or Path(run.dir) / run.name / FILE_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        if run.resume_step is None:
            self._file = _create(path)
        else:
            self._file = path.open("ab", buffering=0)
            self._cut = _ends_mid_line(path)
        self._append([_typed("run", to_json(run))])

    def write(self, points: Sequence[Point]) -> None:
        """Append a line for each point."""
        self._append([_point(point) for point in points])

    def alert(self, alert: Alert) -> None:
        """Append a line for the alert."""
        self._append([_typed("alert", to_json(alert))])

    def close(self, summary: RunSummary, status: Status) -> None:
        """Append the last line and put everything on the disk."""
        if self._file is None:
            return
        with self._file as file:
            self._append([_typed("end", f'{{"status":{json.dumps(status.value)},{to_json(summary)[1:]}')])
            os.fsync(file.fileno())
        self._file = None

    def _append(self, lines: Iterable[str]) -> None:
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
        if self._file is None or not data:
            return
        # What a full disk cut off stays a line of its own, and costs no line that comes after it.
        rest = memoryview(b"\n" + data if self._cut else data)
        while rest:
            self._cut = True
            rest = rest[self._file.write(rest) or 0 :]
        self._cut = False


class JsonlReader:
    """Reads what `JsonlSink` wrote."""

    name = "jsonl"
    """Name of the reader."""

    def find(self, address: str) -> Sequence[str]:
        """Return the runs at or below a path: a folder for each `trackperf.jsonl`, else the file."""
        path = Path(address)
        if path.is_file():
            return [address] if _is_ours(path) else []
        found = []
        for folder, folders, files in os.walk(path):
            folders.sort()
            ours = [Path(folder) / file for file in files if file.endswith(".jsonl")]
            found += [file for file in ours if _is_ours(file)]
        return sorted(str(file.parent if file.name == FILE_NAME else file) for file in found)

    def read(self, address: str) -> RunHistory:
        """
        Read one run: a file, or the folder that holds `trackperf.jsonl`.

        Raises:
            ReadError: there is no such file, or no line of it is of a run.
        """
        from trackperf.sinks._jsonl_reading import read_file  # noqa: PLC0415 - needs numpy, writing does not

        path = Path(address)
        return read_file(path / FILE_NAME if path.is_dir() else path, source=address)


def _create(path: Path) -> BinaryIO:
    number = 1
    while True:
        free = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        try:
            file = free.open("xb", buffering=0)
        except FileExistsError:
            number += 1
            continue
        if free != path:
            _log.warning("trackperf: %s holds another run; this one is written to %s", path, free)
        return file


def _ends_mid_line(path: Path) -> bool:
    """Return whether the file's last line was cut off."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _is_ours(path: Path) -> bool:
    if path.name == FILE_NAME:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_HEAD)) == _HEAD
    except OSError:
        return False


def _typed(kind: str, record: str) -> str:
    return f'{{"type":"{kind}",{record[1:]}'


def _point(point: Point) -> str:
    values: dict[str, Any] = {
        key: float(value) for key, value in point.values.items() if math.isfinite(value)
    }
    fields = {"type": "point", "step": int(point.step), "wall_time": float(point.wall_time), "values": values}
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
