"""The custom-scalars dashboard: the five questions as five charts."""

from __future__ import annotations

import re
from typing import Any, Final

from trackperf.metrics import HEADLINE, full_key
from trackperf_tensorboard.values import clean

__all__ = ["layout_value"]

CATEGORY: Final = "Training performance"
"""Title of the one category."""


def layout_value(prefix: str) -> Any:
    """
    Return the `Summary.Value` that lays the dashboard out.

    The layouts of all runs of a log directory are merged by the category's title, and equal charts are
    shown once. Tags are regular expressions that need only match a beginning, hence the anchors.
    """
    from tensorboard.compat.proto import summary_pb2, tensor_pb2, types_pb2
    from tensorboard.plugins.custom_scalar import layout_pb2

    tags: dict[str, list[str]] = {}
    for metric in HEADLINE:
        if metric.dashboard:
            title = f"{metric.question[0].upper()}{metric.question[1:]} ({metric.unit})"
            tag = re.escape(clean(full_key(metric.key, prefix)))
            tags.setdefault(title, []).append(f"^{tag}$")
    charts = [
        layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=of_question))
        for title, of_question in tags.items()
    ]
    layout = layout_pb2.Layout(category=[layout_pb2.Category(title=CATEGORY, chart=charts)])
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[layout.SerializeToString()])
    data = summary_pb2.SummaryMetadata.PluginData(plugin_name="custom_scalars")
    metadata = summary_pb2.SummaryMetadata(plugin_data=data, data_class=summary_pb2.DATA_CLASS_TENSOR)
    return summary_pb2.Summary.Value(tag="custom_scalars__config__", tensor=tensor, metadata=metadata)
