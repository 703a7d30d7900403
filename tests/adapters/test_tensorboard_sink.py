"""The sink: points into the event file, beside other files and over a resume."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from trackperf_tensorboard import TensorBoardReader, TensorBoardSink

from trackperf.errors import MissingDependencyError
from trackperf.record import Point, RunInfo, RunSummary, Status
from trackperf.sink import Sink
from trackperf.testing import check_sink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    MakeRun: TypeAlias = Callable[..., RunInfo]
    MakePoints: TypeAlias = Callable[..., list[Point]]
    ReadBack: TypeAlias = Callable[[Path, str], list[tuple[int, float]]]


def _opened(run: RunInfo, **arguments: Any) -> tuple[TensorBoardSink, Path]:
    sink = TensorBoardSink(**arguments)
    sink.open(run)
    assert sink.path is not None
    return sink, sink.path


def _values(path: Path) -> dict[str, Any]:
    """Return the last value of each tag of a file, as TensorBoard reads it."""
    return {
        value.tag: value for event in LegacyEventFileLoader(str(path)).Load() for value in event.summary.value
    }


def test_it_is_a_sink() -> None:
    """It has the methods and the name that the protocol asks for."""
    assert isinstance(TensorBoardSink(), Sink)
    assert TensorBoardSink.name == "tensorboard"


def test_it_keeps_the_contract_of_sinks() -> None:
    """It does what trackperf counts on, and what it wrote is read back."""
    reader = TensorBoardReader()
    check_sink(TensorBoardSink, read=lambda run: reader.read(f"{run.dir}/{run.name}"))


@pytest.mark.parametrize("package", ["tensorboard", "google_crc32c"])
def test_a_missing_package_is_told_with_the_pip_line(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Construction fails, before any training, with what to install."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"{package}.*pip install \"trackperf\[tensorboard\]\""):
        TensorBoardSink()


def test_tensorboard_reads_every_point(
    make_run: MakeRun, make_points: MakePoints, summary: RunSummary, accumulated: ReadBack, tmp_path: Path
) -> None:
    """25,000 points written are 25,000 points read, by TensorBoard's reader and by ours."""
    sink, path = _opened(make_run())
    points = [Point(step=i, wall_time=i * 0.5, values={"perf/step_ms": float(i)}) for i in range(25_000)]
    for at in range(0, len(points), 1000):
        sink.write(points[at : at + 1000])
    sink.close(summary, Status.FINISHED)
    assert path.parent == tmp_path / "run"
    assert accumulated(path.parent, "perf/step_ms") == [(i, float(i)) for i in range(25_000)]
    series = TensorBoardReader().read(str(path.parent)).series["perf/step_ms"]
    assert (len(series), series.value.mean()) == (25_000, 12_499.5)
    assert series.wall_time.tolist() == [i * 0.5 for i in range(25_000)]


def test_a_log_directory_of_the_user_is_used_as_it_is(
    make_run: MakeRun, make_points: MakePoints, tmp_path: Path
) -> None:
    """`log_dir` is the folder itself, made when it is not there, with any name."""
    folder = tmp_path / "größe 1: [a]*%" / "tb"
    sink, path = _opened(make_run(), log_dir=str(folder))
    sink.write(make_points([1, 2]))
    assert path.parent == folder
    assert not set(path.name) & set('<>:"/\\|?* ')
    assert len(TensorBoardReader().read(str(folder)).series["perf/step_ms"]) == 2


def test_two_writers_in_a_folder_do_not_touch_each_other(
    make_run: MakeRun, make_points: MakePoints, accumulated: ReadBack, tmp_path: Path, summary: RunSummary
) -> None:
    """The user's own SummaryWriter, opened before or after, keeps all its points, also over a resume."""
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "run"
    for resume_step, steps in ((None, range(1, 11)), (10, range(11, 21))):
        early = SummaryWriter(str(folder))
        sink, _ = _opened(make_run(resume_step=resume_step))
        late = SummaryWriter(str(folder))
        sink.write(make_points(steps))
        for step in steps:
            early.add_scalar("loss/early", step, step)
            late.add_scalar("loss/late", step, step)
        early.close()
        late.close()
        sink.close(summary, Status.FINISHED)
    history = TensorBoardReader().read(str(folder))
    for tag in ("loss/early", "loss/late", "perf/step_ms"):
        assert [step for step, _ in accumulated(folder, tag)] == list(range(1, 21)), tag
        assert history.series[tag].step.tolist() == list(range(1, 21)), tag
    assert history.problems == ()


def test_a_writer_opened_just_after_ours_is_read_after_ours(
    make_run: MakeRun, make_points: MakePoints, accumulated: ReadBack, tmp_path: Path
) -> None:
    """A session's start voids what was read before it: the user's file of the same second comes later."""
    from torch.utils.tensorboard import SummaryWriter

    first, _ = _opened(make_run(), clock=lambda: 1_000_000_000.0)
    first.write(make_points(range(1, 11)))
    resumed, path = _opened(make_run(resume_step=5))
    assert path.name < path.name.replace(f".{os.getpid():08d}.0.trackperf", f".{os.getpid()}.0")
    writer = SummaryWriter(str(tmp_path / "run"))
    for step in range(1, 11):
        writer.add_scalar("loss", step, step)
    writer.close()
    resumed.write(make_points(range(6, 11)))
    assert len(accumulated(tmp_path / "run", "loss")) == 10
    assert len(accumulated(tmp_path / "run", "perf/step_ms")) == 10


def test_a_new_file_is_read_after_all_that_are_there(make_run: MakeRun, tmp_path: Path) -> None:
    """Also where the clock has gone back since: TensorBoard reads the files in order of name."""
    paths = [_opened(make_run(), log_dir=tmp_path, clock=lambda now=now: now)[1] for now in (2e9, 1e9, 3e9)]
    assert sorted(paths) == paths


def test_a_resume_shows_each_step_once(
    make_run: MakeRun, make_points: MakePoints, accumulated: ReadBack, tmp_path: Path
) -> None:
    """Steps 1 to 150, resumed at 100, on to 200: TensorBoard's slower readers show 200 points as well."""
    first, _ = _opened(make_run())
    first.write(make_points(range(1, 151), 1.0))
    second, _ = _opened(make_run(resume_step=100))
    second.write(make_points(range(101, 201), 2.0))
    found = accumulated(tmp_path / "run", "perf/step_ms")
    assert found == [(step, 1.0 if step <= 100 else 2.0) for step in range(1, 201)]


def test_a_repeated_step_is_written_and_one_that_goes_back_is_told_once(
    make_run: MakeRun, make_points: MakePoints, caplog: pytest.LogCaptureFixture, summary: RunSummary
) -> None:
    """What is dropped is counted: one warning at the first, one at the end with the number."""
    sink, path = _opened(make_run())
    sink.write(make_points([5, 6, 6]))
    assert not caplog.records
    for step in (3, 4, 5):
        sink.write(make_points([step]))
    assert [record.getMessage()[:24] for record in caplog.records] == ["1 values were not writte"]
    sink.close(summary, Status.FINISHED)
    assert caplog.records[-1].getMessage().startswith("3 values were not written")
    assert {record.name for record in caplog.records} == {"trackperf"}
    assert _values(path)["perf/step_ms"].simple_value == 1.0


def test_many_sinks_in_a_folder_get_files_of_their_own(make_run: MakeRun, tmp_path: Path) -> None:
    """Files of one process and one second have different names."""
    paths = {_opened(make_run(), log_dir=tmp_path, clock=lambda: 5.0)[1] for _ in range(8)}
    assert len(paths) == 8
