"""The sink: one event file of ours in the run's folder, beside whatever files are there."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trackperf.codec import to_json
from trackperf.record import Point
from trackperf_tensorboard import values as make
from trackperf_tensorboard.encode import PointEncoder
from trackperf_tensorboard.events import EventFile, Framer, preload, require
from trackperf_tensorboard.hparams import hparams_value
from trackperf_tensorboard.layout import layout_value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackperf.record import Alert, RunInfo, RunSummary, Status

__all__ = ["TensorBoardSink"]

SUFFIX: Final = ".trackperf"
"""What the names of trackperf's own event files end with."""

_logger = logging.getLogger("trackperf")


class TensorBoardSink:
    """
    Writes a run into `<run.dir>/<run.name>`, or into a log directory that is there already.

    Every call hands its records to the operating system before it returns. A call that fails leaves the
    file as it was. Nothing is written from another process than the one that opened the sink.
    """

    name = "tensorboard"

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            log_dir: folder of the event file; a folder of the run's own below `run.dir` when not given.

            clock: tells seconds since the epoch, for the name of the file and for records without a time.

        Raises:
            MissingDependencyError: `tensorboard` or `google-crc32c` is not installed.
        """
        require("the TensorBoard sink")
        preload()
        self._log_dir = None if log_dir is None else Path(log_dir)
        self._clock = clock
        self._pid = os.getpid()
        self._file: EventFile | None = None
        self._warned = 0

    @property
    def path(self) -> Path | None:
        """The event file while it is open."""
        return self._file.path if self._file else None

    def open(self, run: RunInfo) -> None:
        """
        Begin the run's event file.

        Raises:
            OSError: the folder or the file cannot be written.
        """
        self._pid = os.getpid()
        self._run = run
        self._info = to_json(run)
        self._framer = Framer()
        folder = self._log_dir or Path(run.dir) / run.name
        folder.mkdir(parents=True, exist_ok=True)
        seconds, alone = _place(folder, int(self._clock()))
        first = run.resume_step or 0
        self._encoder = PointEncoder(lambda key: make.scalar_metadata(key, run), first)
        self._alert_step = first + 1 if run.resume_step is not None else -1
        file = _create(folder, seconds)
        try:
            file.append(self._opening(run, start=alone))
        except OSError:
            file.close()
            raise
        self._file = file

    def write(self, points: Sequence[Point]) -> None:
        """
        Append points: all of them, or none and an error.

        Raises:
            OSError: they could not be written.
        """
        if os.getpid() != self._pid or not points:
            return
        file = self._opened()
        mark = self._encoder.mark()
        try:
            file.append(self._encoder.encode(points))
        except OSError:
            self._encoder.reset(mark)
            raise
        if self._encoder.dropped > self._warned:
            self._warn_dropped(file)

    def alert(self, alert: Alert) -> None:
        """
        Append an alert: as text for people, and whole for the reader.

        Raises:
            OSError: it could not be written.
        """
        if os.getpid() != self._pid:
            return
        file = self._opened()
        # A second text at a step would take the first one's place.
        step = max(alert.step, self._alert_step + 1)
        text = make.text_value(f"{self._run.prefix}_alert/log", make.alert_markdown(alert))
        record = make.json_value(make.ALERT_TAG, to_json(alert))
        file.append(self._frame(make.value_event(alert.wall_time, step, text, record)))
        self._alert_step = step

    def close(self, summary: RunSummary, status: Status) -> None:
        """Append summary and status, and make sure that all is on the disk. Never raises for a full disk."""
        if os.getpid() != self._pid or self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.append(self._closing(summary, status))
            file.sync()
        except OSError as error:
            _logger.warning("the run's end could not be written to TensorBoard: %s", error)
        try:
            file.close()
        except OSError as error:
            _logger.warning("the event file did not close well: %s", error)
        if self._encoder.dropped > self._warned:
            self._warn_dropped(file, again=True)

    def _opened(self) -> EventFile:
        if self._file is None:
            raise OSError(9, "the TensorBoard sink is not open", str(self._log_dir or ""))
        return self._file

    def _frame(self, *events: bytes) -> bytes:
        return b"".join(map(self._framer.frame, events))

    def _opening(self, run: RunInfo, *, start: bool) -> bytes:
        now, first = self._clock(), run.resume_step or 0
        events = [make.version_event(now)]
        if start:
            # Points carry finished steps: the one at the step of the resume is still good.
            events.append(make.start_event(now, 0 if run.resume_step is None else first + 1))
        info = make.json_value(make.INFO_TAG, self._info)
        events.append(make.value_event(now, first, info, hparams_value(run), layout_value(run.prefix)))
        if run.resume_step is not None:
            # A text at this step takes the place of the alerts of the steps that are done again.
            note = make.text_value(f"{run.prefix}_alert/log", f"Resumed at step {first}.")
            events.append(make.value_event(now, first + 1, note))
        return self._frame(*events)

    def _closing(self, summary: RunSummary, status: Status) -> bytes:
        now, step = self._clock(), summary.steps
        told = f'{{"status":{json.dumps(status.value)},"summary":{to_json(summary)}}}'
        values = [make.json_value(make.CLOSE_TAG, told)]
        info = to_json(self._run)
        if info != self._info:
            values.append(make.json_value(make.INFO_TAG, info))
        events = [make.value_event(now, step, *values)]
        columns = _columns(summary, self._run.prefix)
        encoder = PointEncoder(lambda key: make.scalar_metadata(key, self._run), step)
        point = Point(step=step, wall_time=now, values=columns)
        return self._frame(*events) + encoder.encode([point])

    def _warn_dropped(self, file: EventFile, *, again: bool = False) -> None:
        if self._warned and not again:
            return
        self._warned = self._encoder.dropped
        _logger.warning(
            "%d values were not written to %s: they are no finite numbers, or their step lies before "
            "the last one written",
            self._encoder.dropped,
            file.path,
        )


def _columns(summary: RunSummary, prefix: str) -> dict[str, float]:
    """Return the summary's headline as columns of the hparams table."""
    before, after = f"{prefix}/", f"{prefix}_summary/"
    columns = {
        after + key.removeprefix(before): stat.p50
        for key, stat in summary.metrics.items()
        if key.startswith(before)
    }
    if summary.phases:
        columns[f"{after}train_s"] = summary.train_s
    if summary.to_goal_s is not None:
        columns[f"{after}to_goal_s"] = summary.to_goal_s
    if summary.to_goal_steps is not None:
        columns[f"{after}to_goal_steps"] = summary.to_goal_steps
    return columns


def _place(folder: Path, now: int) -> tuple[int, bool]:
    """
    Return the time for the name of a new file, and whether no others write here.

    TensorBoard reads the files of a folder in order of name, so that a new file must come last. And a
    session's start voids later steps in all files before it, other people's too, in TensorBoard's slower
    loader and in EventAccumulator: it may only be written where no such files are.
    """
    found = [file.name for file in folder.iterdir() if "tfevents" in file.name]
    times = (re.search(r"tfevents\.(\d+)\.", name) for name in found)
    newest = max((int(time[1]) for time in times if time), default=-1)
    return max(now, newest + 1), all(name.endswith(SUFFIX) for name in found)


def _create(folder: Path, seconds: int) -> EventFile:
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname()) or "localhost"
    for number in range(10_000):
        # Zeros before the process id: of the files of one second ours shall be read first.
        name = f"events.out.tfevents.{seconds:010d}.{host}.{os.getpid():08d}.{number}{SUFFIX}"
        try:
            return EventFile(folder / name)
        except FileExistsError:
            continue
    raise FileExistsError(17, "no name for an event file is free", str(folder))
