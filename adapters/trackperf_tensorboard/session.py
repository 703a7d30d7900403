"""One event file as a session: its series, and what trackperf wrote about the run."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

from trackperf.codec import from_json
from trackperf.record import Alert, RunInfo, RunSummary, Status
from trackperf.sessions import Session
from trackperf_tensorboard.scan import FileScan
from trackperf_tensorboard.values import ALERT_TAG, CLOSE_TAG, INFO_TAG, PLUGIN

if TYPE_CHECKING:
    from pathlib import Path

    from trackperf_tensorboard.columns import Columns

__all__ = ["FileSession"]

_START: Final = 1
"""`SessionLog.START`."""


class FileSession:
    """What one process wrote into one event file."""

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: the file.
        """
        self.ours = path.name.endswith(".trackperf")
        self.info: RunInfo | None = None
        self.summary: RunSummary | None = None
        self.status: Status | None = None
        self._alerts: list[Alert] = []
        self._start_step = 0
        self._plugins: dict[str, str] = {}
        self._problems: list[str] = []
        self._path = path
        self._scan = FileScan(path, self._take)

    @property
    def records(self) -> int:
        """Number of records that could be read."""
        return self._scan.records

    def read(self) -> None:
        """
        Read the file.

        Raises:
            OSError: it cannot be opened or read.
        """
        self._scan.run()

    def problems(self) -> list[str]:
        """Return what is wrong with the file, a sentence each."""
        return self._scan.problems() + self._problems

    def session(self) -> Session:
        """Return series and alerts, and the step at which the session took over; the series only once."""
        resume_step = self.info.resume_step if self.info else None
        if resume_step is None and self._start_step > 0:
            resume_step = self._start_step - 1
        return Session(
            resume_step=resume_step, series=self._scan.columns.series(), alerts=tuple(self._alerts)
        )

    def _take(self, event: Any, columns: Columns) -> None:
        """Take an event that is not plain scalars."""
        if event.HasField("session_log") and event.session_log.status == _START:
            self._start_step = event.step
        for value in event.summary.value:
            plugin = value.metadata.plugin_data.plugin_name
            if plugin:
                self._plugins[value.tag] = plugin
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                columns.add(value.tag.encode(), event.step, event.wall_time, value.simple_value)
            elif kind == "tensor":
                self._tensor(event, value, columns)

    def _tensor(self, event: Any, value: Any, columns: Columns) -> None:
        plugin = self._plugins.get(value.tag, "scalars")
        if plugin == PLUGIN and len(value.tensor.string_val) == 1:
            self._record(value.tag, value.tensor.string_val[0])
        elif plugin == "scalars":
            number = _number(value.tensor)
            if number is not None:
                columns.add(value.tag.encode(), event.step, event.wall_time, number)

    def _record(self, tag: str, text: bytes) -> None:
        """Take one of trackperf's own records; of info and end the last one stands."""
        try:
            if tag == INFO_TAG:
                self.info = from_json(RunInfo, text)
            elif tag == ALERT_TAG:
                self._alerts.append(from_json(Alert, text))
            elif tag == CLOSE_TAG:
                told = json.loads(text)
                self.status = Status(told["status"])
                self.summary = from_json(RunSummary, json.dumps(told["summary"]))
        except (ValueError, TypeError, KeyError) as error:
            self._problems.append(f"{self._path.name}: the record {tag!r} is not understood: {error}")


def _number(tensor: Any) -> float | None:
    """Return the number of a tensor that holds one; None for any other."""
    from tensorboard.compat.proto import types_pb2

    if any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    values, kind = {
        types_pb2.DT_FLOAT: (tensor.float_val, "<f"),
        types_pb2.DT_DOUBLE: (tensor.double_val, "<d"),
    }.get(tensor.dtype, ((), ""))
    if len(values) == 1:
        return float(values[0])
    if kind and len(tensor.tensor_content) == struct.calcsize(kind):
        return float(struct.unpack(kind, tensor.tensor_content)[0])
    return None
