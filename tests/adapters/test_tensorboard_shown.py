"""What the sink writes for people: descriptions, dashboard, settings, alerts, the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from trackperf_tensorboard import TensorBoardReader, TensorBoardSink
from trackperf_tensorboard.hparams import settings

from trackperf.record import Point, RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    from trackperf.record import Alert

    MakeRun: TypeAlias = Callable[..., RunInfo]
    MakeAlert: TypeAlias = Callable[..., Alert]


def _values(path: Path) -> dict[str, Any]:
    """Return the last value of each tag of a file, as TensorBoard reads it."""
    return {
        value.tag: value for event in LegacyEventFileLoader(str(path)).Load() for value in event.summary.value
    }


def _opened(run: RunInfo, **arguments: Any) -> tuple[TensorBoardSink, Path]:
    sink = TensorBoardSink(**arguments)
    sink.open(run)
    assert sink.path is not None
    return sink, sink.path


def test_series_are_described_in_the_catalogues_words(make_run: MakeRun) -> None:
    """Title, unit and meaning go with the series, also under a prefix; user's series keep their name."""
    sink, path = _opened(make_run(prefix="p.x", names={"val_acc": "val@acc"}))
    values = {"p.x/step_ms": 1.0, "p.x_host/cpu_pct": 2.0, "val_acc": 3.0}
    sink.write([Point(step=1, wall_time=1.0, values=values)])
    found = {tag: value.metadata for tag, value in _values(path).items()}
    assert found["p.x/step_ms"].display_name == "time per step (ms)"
    assert "Lower is better" in found["p.x/step_ms"].summary_description
    assert found["p.x_host/cpu_pct"].display_name == "CPU use (%)"
    assert found["val_acc"].display_name == "val@acc"
    assert found["val_acc"].plugin_data.plugin_name == "scalars"


def test_the_dashboard_has_five_charts_of_exact_tags(make_run: MakeRun) -> None:
    """One category, a chart a question, each tag matching itself and nothing longer."""
    import re

    _, path = _opened(make_run(prefix="p.x"))
    layout = layout_pb2.Layout.FromString(_values(path)["custom_scalars__config__"].tensor.string_val[0])
    assert [category.title for category in layout.category] == ["Training performance"]
    charts = {chart.title: list(chart.multiline.tag) for chart in layout.category[0].chart}
    assert list(charts) == [
        "Throughput (1/s)",
        "Training time (s)",
        "GPU utilisation (%)",
        "Memory-bandwidth utilisation (%)",
        "Data-loading latency (%)",
    ]
    (pattern,) = charts["Training time (s)"]
    tags = ("p.x/train_s", "p.x/train_s_max", "pxx/train_s")
    assert [bool(re.match(pattern, tag)) for tag in tags] == [True, False, False]


def test_settings_are_flat_and_simple(make_run: MakeRun) -> None:
    """Nested settings get dotted names; only flags, finite numbers and short text are kept."""

    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no")

    endless: dict[str, Any] = {}
    endless["self"] = endless
    run = make_run(
        config={
            "lr": 0.1,
            "opt": {"name": "adam", "amp": True},
            "nan": float("nan"),
            "none": None,
            "odd": Odd(),
            "sizes": [1, 2],
            "long": "x" * 999,
            "half\udc80": "\udc80",
            "batch_size": 64,
            "loop": endless,
        },
        tags={"data": "v2"},
        loader={"batch_size": 32, "num_workers": 4},
        environment={"gpu": "H200", "irrelevant": "x"},
        world_size=8,
    )
    found = settings(run)
    (deep,) = (name for name in found if name.startswith("loop."))
    assert len(str(found.pop(deep))) <= 200
    assert found == {
        "lr": 0.1,
        "opt.name": "adam",
        "opt.amp": True,
        "sizes": "[1, 2]",
        "long": "x" * 200,
        "half?": "?",
        "batch_size": 64.0,
        "data": "v2",
        "num_workers": 4.0,
        "world_size": 8.0,
        "gpu": "H200",
    }
    _, path = _opened(run)
    content = _values(path)["_hparams_/session_start_info"].metadata.plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert (start.hparams["opt.amp"].bool_value, start.hparams["lr"].number_value) == (True, 0.1)
    assert "_hparams_/experiment" not in _values(path)


def test_alerts_are_text_and_never_share_a_step(
    make_run: MakeRun, make_alert: MakeAlert, summary: RunSummary
) -> None:
    """Two alerts at a step are both there as text, and come back exactly, in order."""
    sink, path = _opened(make_run())
    alerts = [
        make_alert(),
        make_alert(rule="gpu_temperature", value=91.0, threshold=85.0),
        make_alert(state="cleared", advice="", step=41),
    ]
    for alert in alerts:
        sink.alert(alert)
    texts = [
        (event.step, value.tensor.string_val[0].decode())
        for event in LegacyEventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag == "perf_alert/log"
    ]
    assert [step for step, _ in texts] == [40, 41, 42]
    assert "warning: `loader_latency` raised" in texts[0][1]
    assert "at step 40: 33.25 % against a limit of 10 %" in texts[0][1]
    assert "**Advice:** Use num_workers=4." in texts[0][1]
    assert "91 C against a limit of 85 C" in texts[1][1]
    assert "Advice" not in texts[2][1]
    assert TensorBoardReader().read(str(path)).alerts == tuple(alerts)


def test_the_end_has_the_medians_as_columns(make_run: MakeRun, summary: RunSummary) -> None:
    """Medians of the headline, training time and time to the goal stand beside the settings."""
    sink, path = _opened(make_run())
    sink.close(summary, Status.KILLED)
    sink.close(summary, Status.FINISHED)
    found = {tag: v.simple_value for tag, v in _values(path).items() if tag.startswith("perf_summary/")}
    assert found == {
        "perf_summary/step_ms": 1.5,
        "perf_summary/train_s": 10.0,
        "perf_summary/to_goal_s": 7.5,
    }
    told = json.loads(_values(path)["trackperf/close"].tensor.string_val[0])
    assert told["status"] == "killed"


def test_info_that_grew_is_written_again(make_run: MakeRun, summary: RunSummary) -> None:
    """Names that came up during the run are with the run when it is read."""
    names: dict[str, str] = {}
    sink, path = _opened(make_run(names=names))
    names["val_acc"] = "val@acc"
    sink.close(summary, Status.FINISHED)
    info = TensorBoardReader().read(str(path)).info
    assert info is not None
    assert info.names == {"val_acc": "val@acc"}
