"""W&B's files on this machine, read by W&B's own reader."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trackperf.errors import ReadError
from trackperf_wandb.parts import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["file_of", "read_file", "run_folders", "sessions_of"]

_INSPECT: Final = ("leet", "inspect", "--json")
_FOLDER: Final = re.compile(r"(offline-)?run-(\d{8}_\d{6})-.+")


def file_of(folder: Path) -> Path | None:
    """Return the file of records in a run's folder; None when it is no such folder."""
    if not _FOLDER.fullmatch(folder.name):
        return None
    return next(iter(sorted(folder.glob("run-*.wandb"))), None)


def run_folders(top: Path) -> Iterator[Path]:
    """Return the folders of runs at or below a folder."""
    for folder, below, _ in os.walk(top):
        below.sort()
        if file_of(Path(folder)) is not None:
            below.clear()
            yield Path(folder)


def sessions_of(folder: Path) -> list[Path]:
    """Return the files of all sessions of a folder's run, in the order in which they began."""
    own = file_of(folder)
    if own is None:
        return []
    found = [path for beside in folder.parent.iterdir() for path in [beside / own.name] if path.is_file()]
    return sorted((path for path in found if file_of(path.parent)), key=_begun)


def read_file(path: Path) -> tuple[Part, list[str]]:
    """
    Read a file: what is in it, and what is wrong with it.

    Raises:
        ReadError: W&B's reader cannot be run, or finds nothing in it.
    """
    part, said, code = Part(), "", 0
    for command in _commands(path):
        part = Part()
        code, said = _inspect(part, command)
        if part.records:
            break
    else:
        raise ReadError(
            f"W&B's own reader finds no record in {str(path)!r}: {_last(said) or 'it is empty'}. "
            "It comes with wandb 0.31 and newer; a run that has just begun shows after a second"
        )
    problems = []
    if part.bad:
        problems.append(f"{path.name}: {part.bad} records could not be read")
    if code or any(word in said.lower() for word in ("incomplete", "corrupt", "error")):
        problems.append(f"{path.name} is cut or damaged: {_last(said) or 'W&B does not say how'}")
    if part.exit_code is None:
        problems.append(f"{path.name} has no end: its process was killed, or is still at work")
    return part, problems


def _commands(path: Path) -> Iterator[list[str]]:
    """Return what prints a file's records: W&B's reader itself, then its slower command."""
    with contextlib.suppress(Exception):
        from wandb.util import get_core_path

        yield [get_core_path(), *_INSPECT, "--no-observability", "--run-file", str(path), str(path.parent)]
    yield [sys.executable, "-m", "wandb", *_INSPECT, str(path)]


def _inspect(part: Part, command: list[str]) -> tuple[int, str]:
    """Fill a part with what a command prints; return the command's exit status and what it complained of."""
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(  # noqa: S603 - no word of it comes from outside
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "WANDB_ERROR_REPORTING": "false"},
        ) as reader:
            assert reader.stdout is not None  # noqa: S101 - it was asked for
            for line in reader.stdout:
                sound = _take(part, line)
                part.records += sound
                part.bad += not sound
        errors.seek(0)
        return reader.returncode, errors.read().decode(errors="replace").strip()


def _last(said: str) -> str:
    return said.splitlines()[-1] if said else ""


def _take(part: Part, line: bytes) -> bool:
    """Take a record, and return whether it was sound."""
    try:
        record = json.loads(line)
        kind = record["type"]
        told = record.get(kind, {})
        if kind == "history":
            part.row(told["item"])
        elif kind == "run":
            part.name = told.get("display_name", part.name)
            part.configure(told.get("config", {}).get("update", {}))
        elif kind == "config":
            part.configure(told.get("update", {}))
        elif kind == "summary":
            part.summarise(told.get("update", {}))
        elif kind == "exit":
            part.exit_code = int(told.get("exit_code", 0))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return False
    return True


def _begun(path: Path) -> tuple[str, int, float]:
    """Return what puts sessions in order: the second in the folder's name, then W&B's count within it."""
    match = _FOLDER.fullmatch(path.parent.name)
    run_id = path.stem.removeprefix("run-")
    count = path.parent.name.rpartition(run_id)[2].lstrip("-")
    return (match[2] if match else ""), int(count) if count.isdecimal() else 0, path.stat().st_mtime
