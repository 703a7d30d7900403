"""
A run's row in the hparams table.

Only the session's start is written. The record of an "experiment" is left out: TensorBoard takes one such
record for the whole log directory, and other runs' columns vanish; without it the table has the union of
all runs' settings, and every scalar as a metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from trackperf_tensorboard.values import clean

if TYPE_CHECKING:
    from trackperf.record import RunInfo

__all__ = ["hparams_value", "settings"]

_FACTS: Final = ("gpu", "gpus", "precision", "torch", "python", "cpus", "host", "commit")
_MAX_TEXT: Final = 200
_MAX_SETTINGS: Final = 300
_MAX_DEPTH: Final = 8


def settings(run: RunInfo) -> dict[str, bool | float | str]:
    """
    Return what makes the run comparable, flat: the user's settings, tags, and some facts.

    Where a name is there twice, the user's own value stands.
    """
    facts = {name: run.environment[name] for name in _FACTS if name in run.environment}
    flat: dict[str, bool | float | str] = {}
    for source in (run.config, run.tags, run.loader, {"world_size": run.world_size}, facts):
        for name, value in _flatten(source, "", 0):
            if len(flat) < _MAX_SETTINGS:
                flat.setdefault(clean(name), value)
    return flat


def hparams_value(run: RunInfo) -> Any:
    """Return the `Summary.Value` that opens the run's session in the hparams table."""
    from tensorboard.compat.proto import summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
    from tensorboard.plugins.hparams import plugin_data_pb2

    start = plugin_data_pb2.SessionStartInfo(start_time_secs=run.started_at)
    for name, value in settings(run).items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, str):
            start.hparams[name].string_value = value
        else:
            start.hparams[name].number_value = value
    content = plugin_data_pb2.HParamsPluginData(session_start_info=start, version=0).SerializeToString()
    data = summary_pb2.SummaryMetadata.PluginData(plugin_name="hparams", content=content)
    metadata = summary_pb2.SummaryMetadata(plugin_data=data, data_class=summary_pb2.DATA_CLASS_TENSOR)
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=0)])
    nothing = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_shape=shape)
    return summary_pb2.Summary.Value(tag="_hparams_/session_start_info", tensor=nothing, metadata=metadata)


def _flatten(values: Mapping[str, Any], before: str, depth: int) -> Iterator[tuple[str, bool | float | str]]:
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _flatten(value, f"{name}.", depth + 1)
            continue
        setting = _setting(value)
        if setting is not None:
            yield name, setting


def _setting(value: Any) -> bool | float | str | None:
    if value is None or isinstance(value, bool):
        return value
    try:
        if isinstance(value, (int, float)):
            number = float(value)
            return number if math.isfinite(number) else None
        return clean(str(value))[:_MAX_TEXT]
    except Exception:  # noqa: BLE001 - a user's own object may fail to describe itself
        return None
