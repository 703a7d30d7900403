"""The reader on files that are cut, damaged, no event files at all, or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2
from trackperf_tensorboard import TensorBoardReader, TensorBoardSink, scan
from trackperf_tensorboard.events import Framer

from trackperf.errors import ReadError
from trackperf.record import RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from trackperf.history import RunHistory
    from trackperf.record import Point

    MakeRun: TypeAlias = Callable[..., RunInfo]
    MakePoints: TypeAlias = Callable[..., list[Point]]

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


def test_a_cut_file_gives_what_is_whole(make_run: MakeRun, make_points: MakePoints) -> None:
    """The last 7 bytes gone: 99 of 100 points, and the run says that it is cut."""
    path = _write(make_run(), make_points(range(1, 101)))
    os.truncate(path, path.stat().st_size - 7)
    history = _read(path.parent)
    assert history.series["perf/step_ms"].step.tolist() == list(range(1, 100))
    assert [problem for problem in history.problems if "is cut" in problem] == list(history.problems)
    assert len(history.problems) == 1


@pytest.mark.parametrize("place", range(0, 45, 4))
def test_a_flipped_byte_costs_one_record(make_run: MakeRun, make_points: MakePoints, place: int) -> None:
    """Wherever in a record in the middle a byte is wrong, only that record is lost, and it is told."""
    path = _write(make_run(), make_points(range(1, 1001)))
    content = bytearray(path.read_bytes())
    size = len(_record(900, **{"perf/step_ms": 1.0}))
    content[-size * 400 + place] ^= 0x10
    path.write_bytes(content)
    history = _read(path.parent)
    assert history.series["perf/step_ms"].step.tolist() == [step for step in range(1, 1001) if step != 601]
    assert len(history.problems) == 1
    assert "is damaged" in history.problems[0]


@pytest.mark.parametrize("block", [64, 1000, 4099])
def test_blocks_of_any_size_give_the_same_points(
    make_run: MakeRun, make_points: MakePoints, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """A record may lie across the blocks in which a file is read, also one longer than a block."""
    points = make_points(range(1, 500), keys=("a", "b" * 200, "c"))
    path = _write(make_run(), points)
    expected = _read(path).series
    monkeypatch.setattr(scan, "_BLOCK", block)
    history = _read(path)
    assert history.problems == ()
    assert list(history.series) == list(expected) == ["a", "b" * 200, "c"]
    for key, series in expected.items():
        assert series.step.tolist() == history.series[key].step.tolist() == list(range(1, 500))
        assert series.value.tolist() == history.series[key].value.tolist()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"not an event file" * 99, "1683 bytes are no records"),
        (b"\0" * 70_000, "70000 bytes are no records"),
        (b"\x18\0\0", "cut"),
    ],
)
def test_what_is_no_event_file_is_an_error(tmp_path: Path, content: bytes, told: str) -> None:
    """Empty, junk, zeros, a few bytes: ReadError with what was found, never another exception."""
    _file(tmp_path, content)
    with pytest.raises(ReadError, match=told):
        _read(tmp_path)


def test_a_missing_run_is_an_error_with_the_address(tmp_path: Path) -> None:
    """The message has what was given and what to do."""
    with pytest.raises(ReadError, match=r"no-such-run.*No such file.*Give the folder"):
        _read(tmp_path / "no-such-run")
    with pytest.raises(ReadError, match=r"no event file in .*trackperf runs"):
        _read(tmp_path)


def test_a_file_that_cannot_be_read_is_a_problem(
    make_run: MakeRun, make_points: MakePoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other files of the folder are read all the same."""
    path = _write(make_run(), make_points([1]))
    other = _file(path.parent, _record(a=1.0))
    opened = Path.open

    def refuse(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == other:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    history = _read(path.parent)
    assert list(history.series) == ["perf/step_ms"]
    assert history.problems == (f"{NAME} could not be read: Permission denied",)
    with pytest.raises(ReadError, match="Permission denied"):
        _read(other)


def test_records_that_are_not_understood_are_told(tmp_path: Path) -> None:
    """Broken JSON of ours and bytes that are no event are a problem, not an exception."""
    from trackperf_tensorboard.values import CLOSE_TAG, INFO_TAG, json_value, value_event

    framer = Framer()
    content = b"".join(
        framer.frame(data)
        for data in (
            value_event(1.0, 1, json_value(INFO_TAG, "{")),
            value_event(1.0, 1, json_value(CLOSE_TAG, '{"status":"odd","summary":{}}')),
            b"\xff" * 20,
        )
    )
    _file(tmp_path, content + _record(a=1.0), f"{NAME}.trackperf")
    history = _read(tmp_path)
    assert list(history.series) == ["a"]
    assert (history.info, history.status) == (None, None)
    assert len(history.problems) == 3


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_is_never_another_exception(
    make_run: MakeRun, make_points: MakePoints, seed: int
) -> None:
    """Bytes changed, cut out or put in anywhere: what is read was written, and the damage is told."""
    random = np.random.default_rng(seed)
    path = _write(make_run(), make_points(range(1, 400), keys=("a", "b")))
    content = bytearray(path.read_bytes())
    for _ in range(5):
        at = int(random.integers(len(content)))
        match seed % 3:
            case 0:
                content[at] ^= int(random.integers(1, 256))
            case 1:
                del content[at : at + 9]
            case _:
                content[at:at] = random.bytes(9)
    path.write_bytes(content)
    history = _read(path)
    assert history.problems
    assert set(history.series) <= {"a", "b"}
    for key, series in history.series.items():
        assert set(series.value.tolist()) == {1.0 if key == "a" else 2.0}
        assert 300 < len(series) < 400
