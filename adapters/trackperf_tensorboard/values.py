"""What an event carries besides points: descriptions, texts, and trackperf's own records as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trackperf.metrics import CATALOGUE

if TYPE_CHECKING:
    from trackperf.record import Alert, RunInfo

__all__ = [
    "alert_markdown",
    "clean",
    "json_value",
    "scalar_metadata",
    "start_event",
    "text_value",
    "value_event",
    "version_event",
]

PLUGIN: Final = "trackperf"
"""Plug-in name of trackperf's own records; no dashboard shows them."""

INFO_TAG: Final = "trackperf/info"
"""A `RunInfo`."""

ALERT_TAG: Final = "trackperf/alert"
"""An `Alert`."""

CLOSE_TAG: Final = "trackperf/close"
"""How the run ended: `{"status": ..., "summary": {...}}`."""

_UNITS: Final = {
    "bandwidth_bound": "%",
    "baseline_regression": "%",
    "gpu_busy_inefficient": "%",
    "gpu_memory": "%",
    "gpu_temperature": "C",
    "gpu_underused": "%",
    "loader_latency": "%",
    "loader_startup": "%",
    "straggler": "%",
    "throughput_drop": "%",
}
_BETTER: Final = {"higher": " Higher is better.", "lower": " Lower is better.", "neither": ""}


def clean(text: str) -> str:
    """Return text that UTF-8 can carry; half characters, as in odd file names, become `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def version_event(wall_time: float) -> bytes:
    """Return the event that a file begins with."""
    from tensorboard.compat.proto import event_pb2

    serialised: bytes = event_pb2.Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString()
    return serialised


def start_event(wall_time: float, step: int) -> bytes:
    """Return the event that says that a session starts: what stood at `step` and later is void."""
    from tensorboard.compat.proto import event_pb2

    log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    event = event_pb2.Event(wall_time=wall_time, step=step, session_log=log)
    serialised: bytes = event.SerializeToString()
    return serialised


def value_event(wall_time: float, step: int, *values: Any) -> bytes:
    """Return an event with some `Summary.Value`s."""
    from tensorboard.compat.proto import event_pb2, summary_pb2

    event = event_pb2.Event(wall_time=wall_time, step=step, summary=summary_pb2.Summary(value=values))
    serialised: bytes = event.SerializeToString()
    return serialised


def json_value(tag: str, text: str) -> Any:
    """Return the value that keeps one of trackperf's own records."""
    return _string_value(tag, text, PLUGIN, b"", shown=False)


def text_value(tag: str, markdown: str) -> Any:
    """Return a value for the text dashboard."""
    from tensorboard.plugins.text import plugin_data_pb2

    content = plugin_data_pb2.TextPluginData(version=0).SerializeToString()
    return _string_value(tag, markdown, "text", content, shown=True)


def scalar_metadata(key: str, run: RunInfo) -> bytes:
    """Return the serialised description of a series: its title, what it means, its unit."""
    from tensorboard.compat.proto import summary_pb2

    plain_key = "perf" + key[len(run.prefix) :] if key.startswith(run.prefix) else key
    metric = CATALOGUE.get(plain_key)
    metadata = summary_pb2.SummaryMetadata(
        plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="scalars"),
        data_class=summary_pb2.DATA_CLASS_SCALAR,
    )
    if metric is not None:
        metadata.display_name = metric.title if metric.unit == "1" else f"{metric.title} ({metric.unit})"
        metadata.summary_description = metric.meaning + _BETTER[metric.better]
    elif key in run.names:
        metadata.display_name = clean(run.names[key])
    serialised: bytes = metadata.SerializeToString()
    return serialised


def alert_markdown(alert: Alert) -> str:
    """Return an alert as the text dashboard shows it."""
    unit = _UNITS.get(alert.rule, "")
    unit = f" {unit}" if unit else ""
    judged = f"{alert.value:.4g}{unit} against a limit of {alert.threshold:.4g}{unit}"
    lines = [f"**{alert.level}: `{alert.rule}` {alert.state}** at step {alert.step}: {judged}", alert.cause]
    if alert.advice:
        lines.append(f"**Advice:** {alert.advice}")
    return clean("\n\n".join(line for line in lines if line))


def _string_value(tag: str, text: str, plugin: str, content: bytes, *, shown: bool) -> Any:
    from tensorboard.compat.proto import summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2

    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    tensor = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_STRING, tensor_shape=shape, string_val=[text.encode("utf-8", "replace")]
    )
    data = summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    metadata = summary_pb2.SummaryMetadata(plugin_data=data)
    if shown:
        metadata.data_class = summary_pb2.DATA_CLASS_TENSOR
    return summary_pb2.Summary.Value(tag=clean(tag), tensor=tensor, metadata=metadata)
