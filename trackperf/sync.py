"""Sends what waits on disk: the spools that runs left, to their own trackers or into another one."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from trackperf.delivery.manifest import FOLDER, MANIFEST, Manifest
from trackperf.delivery.spool import Spool
from trackperf.errand import Errand
from trackperf.errors import MissingDependencyError, ReadError, TrackperfError
from trackperf.registry import find_runs, load_sink, read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trackperf.history import RunHistory

__all__ = ["Sent", "sync"]

_Group: TypeAlias = "list[tuple[Path, Manifest]]"
"""The spools of one run and sink: one a process, oldest first."""

_FILES: Final = ("jsonl", "tensorboard")
"""Readers of runs in local files, which a folder is looked through by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of one run."""

    run: str
    """Name of the run."""

    sink: str
    """Name of the sink that it goes to."""

    place: str
    """Where it was found."""

    sent: int = 0
    """Points that the sink took."""

    lost: int = 0
    """Points that it refused, or that were damaged."""

    waiting: int | None = 0
    """Points that still wait; None when that cannot be told."""

    remains: bool = False
    """Whether anything remains to be sent."""

    note: str = ""
    """Why something remains, or was refused; empty when all went well."""


class _Sync:
    """One call of `sync`."""

    def __init__(
        self, *, to: str | None, tell: Callable[[str, int, int], None], sleep: Callable[[float], None]
    ) -> None:
        self.to = to
        self._tell = tell
        self._sleep = sleep

    def spools(self, group: _Group) -> Sent:
        """Send what waits of one run."""
        folder, manifest = group[-1]
        told = Sent(
            run=manifest.run.name,
            sink=self.to or manifest.sink,
            place=str(folder),
            waiting=None,
            remains=True,
        )
        held: list[Spool] = []
        try:
            for place, its in group:
                spool = Spool.take_over(place, keep=self.to is not None)
                if spool is None:
                    return replace(told, note=f"a live process has it ({its.pid})")
                held.append(spool)
            return self._send(told, held)
        except (TrackperfError, OSError) as error:
            waiting = sum(spool.waiting for spool in held) if len(held) == len(group) else None
            return replace(told, waiting=waiting, note=str(error))
        finally:
            for spool in held:
                spool.close()

    def history(self, source: str, history: RunHistory) -> Sent:
        """Send a run that was read."""
        told = Sent(run=history.name, sink=self.to or "", place=source)
        errand = self._errand(told, max(map(len, history.series.values()), default=0))
        left = errand.history(history, _folder_of(source, history.name))
        note = "; ".join(filter(None, (errand.why, *history.problems)))
        return replace(told, sent=errand.sent, lost=errand.lost, waiting=left, remains=left > 0, note=note)

    def _send(self, told: Sent, spools: Sequence[Spool]) -> Sent:
        errand = self._errand(told, sum(spool.waiting for spool in spools))
        before = sum(spool.cursor.lost for spool in spools)
        done = errand.spools(spools, own=self.to is None)
        return replace(
            told,
            sent=errand.sent,
            lost=sum(spool.cursor.lost for spool in spools) - before,
            waiting=sum(spool.waiting for spool in spools),
            remains=not done,
            note=errand.why,
        )

    def _errand(self, told: Sent, total: int) -> Errand:
        return Errand(
            load_sink(told.sink), tell=lambda done: self._tell(told.run, done, total), sleep=self._sleep
        )


def sync(
    address: str = "runs",
    *,
    to: str | None = None,
    tell: Callable[[str, int, int], None] = lambda run, done, total: None,  # noqa: ARG005 - says nothing
    sleep: Callable[[float], None] = time.sleep,
) -> list[Sent]:
    """
    Send what waits at or below a folder, each run to its own tracker, and remove what has arrived.

    Args:
        address: the folder; with `to` also a run's address, as its reader knows it.

        to: another sink to send to. Then runs in local files are sent as well, and nothing that is on disk is
            changed.

        tell: is told a run's name, how many of its points are done, and about how many there are.

        sleep: waits for a number of seconds.

    Raises:
        ReadError: there is no such folder.

        SinkError: there is no sink `to`, or it cannot be used.
    """
    is_folder = Path(address).exists()
    if not is_folder and (to is None or ":" not in address):
        raise ReadError(f"there is no folder {address!r}; name the one that runs are in")
    doing = _Sync(to=to, tell=tell, sleep=sleep)
    done: list[Sent] = []
    groups = _groups(Path(address), done) if is_folder else []
    seen: set[str] = set()
    if to is not None:
        load_sink(to)
        for source, history, run_id in _histories(address, to, done):
            if run_id not in seen:
                seen.add(run_id)
                done.append(doing.history(source, history))
    for group in groups:
        run_id = group[-1][1].run.run_id
        if run_id not in seen:
            done.append(doing.spools(group))
            seen |= {run_id} if to is not None else set()
    return done


def _groups(folder: Path, done: list[Sent]) -> list[_Group]:
    """Return the spools at or below a folder, those of one run and sink together; bad ones go to `done`."""
    found: dict[tuple[str, str, str], _Group] = {}
    for place, folders, files in os.walk(folder):
        folders.sort()
        if MANIFEST in files and Path(place).resolve().name.startswith(FOLDER):
            try:
                manifest = Manifest.read(Path(place))
            except ReadError as error:
                done.append(_unread(place, Path(place).name.removeprefix(FOLDER), error))
                continue
            run = (str(Path(place).parent), manifest.run.run_id, manifest.sink)
            found.setdefault(run, []).append((Path(place), manifest))
    return [sorted(group, key=lambda one: one[1].run.started_at) for group in found.values()]


def _histories(address: str, to: str, done: list[Sent]) -> Iterator[tuple[str, RunHistory, str]]:
    """Yield the runs that trackperf wrote, but for those of the sink itself; bad ones go to `done`."""
    readers = [""] if ":" in address and not Path(address).exists() else [f"{name}:" for name in _FILES]
    found = [source for reader in readers for source in _found(f"{reader}{address}")]
    if not found and readers == [""]:
        raise ReadError(f"no run found at {address!r}")
    for source in found:
        if source.partition(":")[0] != to:
            try:
                history = read_run(source)
            except ReadError as error:
                done.append(_unread(source, to, error))
                continue
            if history.info is not None:
                yield source, history, history.info.run_id


def _found(address: str) -> list[str]:
    """Return the runs at an address; none where its reader's tracker is not installed."""
    try:
        return find_runs(address)
    except MissingDependencyError:
        return []


def _unread(place: str, sink: str, error: ReadError) -> Sent:
    name = Path(place).parent.name if Path(place).is_dir() else place
    return Sent(run=name, sink=sink, place=place, waiting=None, remains=True, note=str(error))


def _folder_of(source: str, name: str) -> str | None:
    """Return where runs are, when a run was read from a folder of its own."""
    path = Path(source.partition(":")[2])
    return str(path.parent) if path.is_dir() and path.name == name else None
