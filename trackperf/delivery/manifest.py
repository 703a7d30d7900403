"""What a spool is of: one process's part of a run, for one sink; and who may send it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trackperf.codec import from_json, to_json
from trackperf.errors import ReadError
from trackperf.record import RunInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from filelock import BaseFileLock

__all__ = ["FOLDER", "MANIFEST", "Manifest", "clear", "hold", "new_folder"]

FOLDER: Final = "spool-"
"""What the name of a spool's folder begins with, before the name of its sink."""

MANIFEST: Final = "spool.json"
"""The file that makes a folder a spool."""

_LOCK: Final = "lock"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A spool's description, kept beside it."""

    sink: str
    """Name of the sink."""

    run: RunInfo
    """What the sink is opened with."""

    address: Mapping[str, str]
    """Where the run is in the sink's tracker; empty as long as that is not known."""

    pid: int
    """The process that wrote it."""

    def write(self, folder: Path) -> None:
        """Put it into a spool's folder, whole or not at all."""
        fields = {"version": _VERSION, "sink": self.sink, "pid": self.pid, "address": dict(self.address)}
        text = f'{json.dumps(fields)[:-1]},"run":{to_json(self.run)}}}'
        part = folder / f"{MANIFEST}.part"
        part.write_bytes(text.encode("utf-8", "backslashreplace"))
        part.replace(folder / MANIFEST)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """
        Return the description of a spool.

        Raises:
            ReadError: there is none, or none that this version can read.
        """
        path = folder / MANIFEST
        try:
            loaded: Any = json.loads(path.read_bytes())
            if loaded["version"] != _VERSION:
                raise ReadError(
                    f"{path} is of version {loaded['version']!r}; this trackperf reads {_VERSION}"
                )
            run = from_json(RunInfo, json.dumps(loaded["run"]))
            step = run.resume_step
            return cls(
                sink=str(loaded["sink"]),
                run=replace(run, resume_step=None if step is None else int(step)),
                address={str(key): str(value) for key, value in loaded["address"].items()},
                pid=int(loaded["pid"]),
            )
        except OSError as error:
            raise ReadError(f"cannot read the spool at {str(folder)!r}: {error}") from error
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ReadError(f"{path} is damaged: {error}") from error


def new_folder(run: RunInfo, sink: str) -> Path:
    """
    Make a folder for a spool, which nobody else has, in the run's own.

    Raises:
        OSError: that cannot be done.
    """
    for number in itertools.count(1):
        folder = Path(run.dir) / run.name / (f"{FOLDER}{sink}" if number == 1 else f"{FOLDER}{sink}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def hold(folder: Path) -> BaseFileLock | None:
    """
    Take a spool for this process until the lock is released or the process ends; None when another has it.

    Raises:
        OSError: the file system has no locks, or the folder cannot be written to.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 - slow to import, and only remote sinks need it

    lock = FileLock(os.fspath(folder / _LOCK), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except NotImplementedError as error:
        raise OSError(f"no file can be locked in {folder}: {error}") from error
    return lock


def clear(folder: Path, lock: BaseFileLock | None) -> None:
    """Remove a spool's files, the lock last."""
    with contextlib.suppress(OSError):
        (folder / MANIFEST).unlink()
        for path in folder.iterdir():
            if path.name != _LOCK:
                path.unlink()
    if lock is not None:
        with contextlib.suppress(OSError):
            lock.release()
    with contextlib.suppress(OSError):
        (folder / _LOCK).unlink(missing_ok=True)
        folder.rmdir()
