"""The reader: every point of every file of a run, each step once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from trackperf_tensorboard import TensorBoardReader, TensorBoardSink
from trackperf_tensorboard.columns import Columns
from trackperf_tensorboard.events import Framer

from trackperf.history import Reader, RunHistory
from trackperf.record import RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    from trackperf.record import Alert, Point

    MakeRun: TypeAlias = Callable[..., RunInfo]
    MakePoints: TypeAlias = Callable[..., list[Point]]
    MakeAlert: TypeAlias = Callable[..., Alert]

NAME = "events.out.tfevents.1700000000.host.1.0"


def _write(run: RunInfo, points: list[Any], summary: RunSummary | None = None) -> Path:
    sink = TensorBoardSink()
    sink.open(run)
    path = sink.path
    assert path is not None
    sink.write(points)
    if summary:
        sink.close(summary, Status.FINISHED)
    return path


def _read(path: Path | str) -> RunHistory:
    return TensorBoardReader().read(str(path))


def _record(step: int = 1, **values: float) -> bytes:
    scalars = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    event = event_pb2.Event(wall_time=1.0, step=step, summary=summary_pb2.Summary(value=scalars))
    return Framer().frame(event.SerializeToString())


def _file(folder: Path, content: bytes, name: str = NAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def test_it_is_a_reader() -> None:
    """It has the methods and the name that the protocol asks for."""
    assert isinstance(TensorBoardReader(), Reader)
    assert TensorBoardReader.name == TensorBoardSink.name


def test_a_run_comes_back_as_it_was(
    make_run: MakeRun, make_points: MakePoints, summary: RunSummary, tmp_path: Path
) -> None:
    """Points, info, summary and status are those that were written."""
    run = make_run(config={"lr": 0.1}, tags={"data": "v2"}, loader={"batch_size": 8})
    _write(run, make_points([2, 4, 700], 0.5, ("perf/step_ms", "perf/data_pct")), summary)
    history = _read(f"tensorboard:{tmp_path / 'run'}")
    assert (history.name, history.source) == ("run", f"tensorboard:{tmp_path / 'run'}")
    assert history.info == run
    assert (history.summary, history.status, history.problems) == (summary, Status.FINISHED, ())
    series = history.series["perf/data_pct"]
    assert series.step.tolist() == [2, 4, 700]
    assert series.wall_time.tolist() == [1_700_000_002.0, 1_700_000_004.0, 1_700_000_700.0]
    assert series.value.tolist() == [1.5] * 3
    assert [str(array.dtype) for array in (series.step, series.wall_time, series.value)] == [
        "int64",
        "float64",
        "float64",
    ]


def test_a_resume_replaces_later_steps_and_counts_them(
    make_run: MakeRun, make_points: MakePoints, make_alert: MakeAlert, summary: RunSummary, tmp_path: Path
) -> None:
    """Steps 1 to 150, resumed at 100, on to 200: 200 steps, the second values, 50 steps done twice."""
    keys = ("perf/train_s", "perf/step_ms")
    first = TensorBoardSink()
    first.open(make_run())
    first.write([point for step in range(1, 151) for point in make_points([step], step / 10, keys)])
    kept, replaced = make_alert(step=90), make_alert(step=120)
    first.alert(kept)
    first.alert(replaced)
    first.close(dataclasses.replace(summary, steps=150), Status.KILLED)
    _write(make_run(resume_step=100), make_points(range(101, 201), 2.0, keys))
    history = _read(tmp_path / "run")
    series = history.series["perf/step_ms"]
    assert series.step.tolist() == list(range(1, 201))
    assert (series.value[99], series.value[119]) == (11.0, 3.0)
    assert history.redone_steps == 50
    assert history.redone_s == pytest.approx(5.0)
    assert history.alerts == (kept,)
    assert history.info == make_run(resume_step=100)
    assert (history.status, history.summary, history.problems) == (None, None, ())


def test_resumed_steps_that_overlap_stand_once(
    make_run: MakeRun, make_points: MakePoints, tmp_path: Path
) -> None:
    """Steps 0 to 149, resumed at 100 and written from 100 on: 200 unique steps, the later value at 120."""
    _write(make_run(), make_points(range(150), 1.0))
    _write(make_run(resume_step=100), make_points(range(100, 200), 2.0))
    series = _read(tmp_path / "run").series["perf/step_ms"]
    assert series.step.tolist() == list(range(200))
    assert series.value.tolist() == [1.0] * 100 + [2.0] * 100


def test_files_of_summary_writer_are_read_whole(tmp_path: Path) -> None:
    """Tags in turn, numbers in the old and the new form, steps of growing length, gaps, text: all there."""
    from torch.utils.tensorboard import SummaryWriter

    random = np.random.default_rng(0)
    expected: dict[str, list[tuple[int, float]]] = {}
    writer = SummaryWriter(str(tmp_path / "run"))
    writer.add_text("notes", "some text")
    for step in range(0, 40_000, 7):
        for tag in ("loss", "lr", "a/longer/tag"):
            if random.random() < 0.001:
                continue
            value = float(np.float32(random.random()))
            writer.add_scalar(tag, value, step)
            expected.setdefault(tag, []).append((step, value))
        if step % 70 == 0:
            writer.add_scalar("exact", step / 3, step, new_style=True, double_precision=True)
            writer.add_scalar("new", 0.5, step, new_style=True)
            expected.setdefault("exact", []).append((step, step / 3))
            expected.setdefault("new", []).append((step, 0.5))
    writer.add_histogram("weights", np.arange(10.0), 1)
    writer.close()
    history = _read(tmp_path / "run")
    assert (history.info, history.problems, history.name) == (None, (), "run")
    assert sorted(history.series) == sorted(expected)
    for tag, points in expected.items():
        series = history.series[tag]
        assert list(zip(series.step.tolist(), series.value.tolist(), strict=True)) == points, tag


def test_tensors_of_one_number_are_read(tmp_path: Path) -> None:
    """Numbers as raw bytes are read as well; tensors of several numbers or of text are no scalars."""

    def value(tag: str, plugin: str, **tensor: Any) -> Any:
        metadata = summary_pb2.SummaryMetadata()
        metadata.plugin_data.plugin_name = plugin
        return summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=tensor_pb2.TensorProto(**tensor))

    raw = {"dtype": types_pb2.DT_FLOAT, "tensor_content": np.float32(2.5).tobytes()}
    several = {"dtype": types_pb2.DT_DOUBLE, "double_val": [1.0, 2.0]}
    pair = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=2)])
    filled = {"dtype": types_pb2.DT_DOUBLE, "double_val": [1.0], "tensor_shape": pair}
    values = [
        value("raw", "scalars", **raw),
        value("several", "scalars", **several),
        value("filled", "scalars", **filled),
        value("other", "pr_curves", **raw),
        value("whole", "scalars", dtype=types_pb2.DT_INT64, int64_val=[3]),
    ]
    event = event_pb2.Event(wall_time=1.0, step=3, summary=summary_pb2.Summary(value=values))
    path = _file(tmp_path, Framer().frame(event.SerializeToString()) + _record(4, raw=3.0))
    series = _read(path).series
    assert {tag: found.value.tolist() for tag, found in series.items()} == {"raw": [2.5, 3.0]}


def test_a_restart_of_another_writer_is_taken_as_it_says(tmp_path: Path) -> None:
    """A SummaryWriter with `purge_step=60` voids its own steps from 60 on, and not ours."""
    from torch.utils.tensorboard import SummaryWriter

    sink = TensorBoardSink(tmp_path)
    sink.open(RunInfo(run_id="1" * 32, name="run", dir="", started_at=1.0))
    for first, last, value in ((0, 100, 1.0), (60, 80, 2.0)):
        writer = SummaryWriter(str(tmp_path), purge_step=first or None, filename_suffix=f".{first:03d}")
        for step in range(first + 2 if first else 0, last):
            writer.add_scalar("loss", value, step)
        writer.close()
    series = _read(tmp_path).series["loss"]
    assert series.step.tolist() == [*range(60), *range(62, 80)]
    assert series.value.tolist() == [1.0] * 60 + [2.0] * 18


def test_the_same_key_from_another_writer_is_told(make_run: MakeRun, make_points: MakePoints) -> None:
    """Ours stands; the other's values are not mixed in."""
    path = _write(make_run(), make_points([1, 2]))
    _file(path.parent, _record(9, **{"perf/step_ms": 5.0}))
    history = _read(path.parent)
    assert history.series["perf/step_ms"].step.tolist() == [1, 2]
    assert "perf/step_ms" in history.problems[0]


def test_files_of_two_runs_in_a_folder_are_told(make_run: MakeRun, make_points: MakePoints) -> None:
    """A folder that two runs were written into is read, with a problem."""
    _write(make_run(), make_points([1, 2]))
    path = _write(make_run(run_id="2" * 32), make_points([2, 3]))
    history = _read(path.parent)
    assert history.series["perf/step_ms"].step.tolist() == [1, 2, 3]
    assert "different runs" in history.problems[0]


def test_runs_are_found_at_and_below_a_folder(tmp_path: Path) -> None:
    """In order of name, folders of odd names and behind links too, each once; nothing is an empty answer."""
    for name in ("b", "a/deep", "größe 1: [x]"):
        _file(tmp_path / name, _record(a=1.0))
    _file(tmp_path / "profile", b"", f"{NAME}.profile-empty")
    (tmp_path / "none").mkdir()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    _file(outside, _record(a=1.0))
    (tmp_path / "c").symlink_to(outside)
    reader = TensorBoardReader()
    expected = [str(tmp_path / name) for name in ("a/deep", "b", "c", "größe 1: [x]")]
    assert list(reader.find(f"tensorboard:{tmp_path}")) == list(reader.find(str(tmp_path))) == expected
    file = str(tmp_path / "b" / NAME)
    assert list(reader.find(file)) == [file]
    assert list(reader.find(str(tmp_path / "none"))) == list(reader.find("/no/such/folder")) == []
    assert [_read(found).series["a"].value.tolist() for found in (*expected, file)] == [[1.0]] * 5


def test_a_point_takes_at_most_48_bytes(make_run: MakeRun, make_points: MakePoints) -> None:
    """What the history holds is numbers in arrays that own them, and no more."""
    path = _write(make_run(), make_points(range(1, 20_001), keys=("a", "b")))
    arrays = {
        id(array.base if array.base is not None else array): (
            array.base if array.base is not None else array
        ).nbytes
        for series in _read(path).series.values()
        for array in (series.step, series.wall_time, series.value)
    }
    assert sum(arrays.values()) <= 48 * 40_000


def test_points_keep_the_order_in_which_they_came() -> None:
    """One by one or many at a time, in any mixture."""
    columns = Columns()
    columns.add(b"a", 1, 10.0, 0.5)
    many = np.array([2.0, 3.0])
    columns.extend(b"a", many.astype(np.int64), many * 10, many / 2)
    columns.add(b"a", 4, 40.0, 2.0)
    series = columns.series()["a"]
    assert series.step.tolist() == [1, 2, 3, 4]
    assert series.wall_time.tolist() == [10.0, 20.0, 30.0, 40.0]
    assert series.value.tolist() == [0.5, 1.0, 1.5, 2.0]
    assert columns.series() == {}
