"""The reader: all event files of a folder as one run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trackperf.errors import ReadError
from trackperf.history import RunHistory
from trackperf.metrics import full_key
from trackperf.sessions import merge_sessions
from trackperf_tensorboard.events import require
from trackperf_tensorboard.session import FileSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["TensorBoardReader"]


class TensorBoardReader:
    """
    Reads runs from TensorBoard's event files: every point, every checksum verified.

    A run is a folder with event files: ours, and those of other writers for the scalars in them.
    """

    name = "tensorboard"

    def __init__(self) -> None:
        """
        Make a reader.

        Raises:
            MissingDependencyError: `tensorboard` or `google-crc32c` is not installed.
        """
        require("the TensorBoard reader")

    def find(self, address: str) -> Sequence[str]:
        """
        Return the folders at or below an address that hold event files, in order of name.

        Args:
            address: a folder or an event file, with or without `tensorboard:` before it.
        """
        path = _path(address)
        if path.is_file():
            return [str(path)] if _is_event_file(path.name) else []
        return sorted(_folders(path))

    def read(self, address: str) -> RunHistory:
        """
        Read a run.

        Args:
            address: its folder, or one event file of it.

        Raises:
            ReadError: there is no event file, or no record in any that can be read.
        """
        path = _path(address)
        sessions: list[FileSession] = []
        problems: list[str] = []
        for file in _event_files(path, address):
            session = FileSession(file)
            try:
                session.read()
            except OSError as error:
                problems.append(f"{file.name} could not be read: {error.strerror or error}")
            sessions.append(session)
            problems += session.problems()
        sessions = [session for session in sessions if session.records]
        if not sessions:
            told = "; ".join(problems) or "its event files are empty"
            raise ReadError(
                f"there is no record to read in {address!r} ({told}). If the run has just begun, try again "
                "in a few seconds; otherwise read another run"
            )
        return _history(path, address, sessions, problems)


def _path(address: str) -> Path:
    return Path(address.removeprefix("tensorboard:")).expanduser()


def _is_event_file(name: str) -> bool:
    return "tfevents" in name and not name.endswith(".profile-empty")


def _folders(top: Path) -> Iterator[str]:
    """Return the folders with event files; links are followed, each folder is entered once."""
    seen: set[tuple[int, int]] = set()
    for folder, below, files in os.walk(top, followlinks=True):
        try:
            stat = Path(folder).stat()
        except OSError:
            below.clear()
            continue
        if (stat.st_dev, stat.st_ino) in seen:
            below.clear()
            continue
        seen.add((stat.st_dev, stat.st_ino))
        below.sort()
        if any(map(_is_event_file, files)):
            yield folder


def _event_files(path: Path, address: str) -> list[Path]:
    try:
        if path.is_file():
            return [path]
        found = [file for file in path.iterdir() if _is_event_file(file.name)]
    except OSError as error:
        raise ReadError(
            f"{address!r} is not a folder that can be read ({error.strerror or error}). Give the folder of a "
            "run, such as runs/my-run, or an event file"
        ) from error
    files = sorted(file for file in found if file.is_file())
    if not files:
        raise ReadError(
            f"there is no event file in {address!r}. A run's folder has files with 'tfevents' in their "
            f"names; list the runs below a folder with: trackperf runs {path}"
        )
    return files


def _history(path: Path, address: str, sessions: Sequence[FileSession], problems: list[str]) -> RunHistory:
    ours = [session for session in sessions if session.ours]
    foreign = [session for session in sessions if not session.ours]
    info = next((session.info for session in reversed(ours) if session.info), None)
    if len({session.info.run_id for session in ours if session.info}) > 1:
        problems.append("files of different runs lie in this folder; their points are mixed")
    prefix = info.prefix if info else "perf"
    merged = merge_sessions([session.session() for session in ours], full_key("perf/train_s", prefix))
    others = merge_sessions([session.session() for session in foreign], "").series
    twice = sorted(others.keys() & merged.series.keys())
    if twice:
        problems.append(f"another writer has written {', '.join(twice)} too; its values were left out")
    folder = path.parent if path.is_file() else path
    return RunHistory(
        name=info.name if info else folder.resolve().name,
        source=address,
        series={**others, **merged.series},
        alerts=merged.alerts,
        info=info,
        summary=ours[-1].summary if ours else None,
        status=ours[-1].status if ours else None,
        problems=tuple(problems),
        redone_steps=merged.redone_steps,
        redone_s=merged.redone_s,
    )
