"""The sink when the process dies or forks, or the disk is full."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from trackperf_tensorboard import TensorBoardReader, TensorBoardSink
from trackperf_tensorboard.events import EventFile

from trackperf.record import Point, RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from trackperf.record import Alert

    MakeRun: TypeAlias = Callable[..., RunInfo]
    MakePoints: TypeAlias = Callable[..., list[Point]]
    MakeAlert: TypeAlias = Callable[..., Alert]
    ReadBack: TypeAlias = Callable[[Path, str], list[tuple[int, float]]]

KEYS = ("perf/samples_per_s", "perf/step_ms", "perf/data_pct")

CHILD = """
import os, signal, sys
from trackperf.record import Point, RunInfo
from trackperf_tensorboard import TensorBoardSink
sink = TensorBoardSink()
sink.open(RunInfo(run_id="1" * 32, name="run", dir=sys.argv[1], started_at=1.0))
for step in range(1, 101):
    sink.write([Point(step=step, wall_time=float(step), values={"perf/step_ms": float(step)})])
os.kill(os.getpid(), signal.SIGKILL)
"""


def _opened(run: RunInfo, **arguments: Any) -> tuple[TensorBoardSink, Path]:
    sink = TensorBoardSink(**arguments)
    sink.open(run)
    assert sink.path is not None
    return sink, sink.path


def test_importing_the_adapter_imports_no_tracker() -> None:
    """TensorBoard and the checksum package are loaded by construction, not by import; torch never."""
    names = "print([m for m in ('tensorboard', 'torch', 'google_crc32c', 'pandas') if m in sys.modules]); "
    code = (
        f"import sys; from trackperf_tensorboard import TensorBoardSink; {names} TensorBoardSink(); {names}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['tensorboard', 'google_crc32c']"]


def test_opening_a_run_imports_nothing(tmp_path: Path) -> None:
    """What a run needs was imported when the sink was made: opening and closing it load no more."""
    code = (
        "import sys; from pathlib import Path; from trackperf.testing import check_sink; "
        "from trackperf_tensorboard import TensorBoardSink; TensorBoardSink(); before = set(sys.modules); "
        "check_sink(TensorBoardSink); "
        "print(sorted(m for m in set(sys.modules) - before if m.startswith(('tensorboard', 'google'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"


def test_writing_needs_no_torch(tmp_path: Path) -> None:
    """A whole run is written without torch or TensorFlow."""
    code = CHILD.replace("os.kill(os.getpid(), signal.SIGKILL)", "print('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_killed_process_loses_nothing_handed_over(tmp_path: Path, accumulated: ReadBack) -> None:
    """100 points written, then SIGKILL: 100 points read, a run without an end and without a problem."""
    done = subprocess.run([sys.executable, "-c", CHILD, tmp_path], check=False)
    assert done.returncode == -signal.SIGKILL
    history = TensorBoardReader().read(str(tmp_path / "run"))
    assert history.series["perf/step_ms"].value.tolist() == list(range(1, 101))
    assert (history.status, history.summary, history.problems) == (None, None, ())
    assert len(accumulated(tmp_path / "run", "perf/step_ms")) == 100


def test_a_forked_child_writes_nothing(
    make_run: MakeRun, make_points: MakePoints, make_alert: MakeAlert, summary: RunSummary
) -> None:
    """Every call in another process than the one that opened the sink does nothing."""
    sink, path = _opened(make_run())
    sink.write(make_points([1]))
    before = path.read_bytes()
    child = os.fork()
    if not child:
        status = 1
        try:
            sink.write(make_points([2]))
            sink.alert(make_alert())
            sink.close(summary, Status.FAILED)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.read_bytes() == before
    sink.write(make_points([2]))
    assert len(TensorBoardReader().read(str(path)).series["perf/step_ms"]) == 2


def test_a_folder_below_a_file_is_an_error_with_the_path(
    make_run: MakeRun, make_points: MakePoints, make_alert: MakeAlert, tmp_path: Path, summary: RunSummary
) -> None:
    """Open raises OSError that names the place; later calls raise or do nothing, close never raises."""
    (tmp_path / "file").write_text("")
    sink = TensorBoardSink(tmp_path / "file" / "below")
    with pytest.raises(OSError, match="file/below"):
        sink.open(make_run())
    with pytest.raises(OSError, match="not open"):
        sink.write(make_points([1]))
    with pytest.raises(OSError, match="not open"):
        sink.alert(make_alert())
    sink.close(summary, Status.FAILED)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a real file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_an_error_and_the_file_stays_whole(
    make_run: MakeRun,
    make_points: MakePoints,
    summary: RunSummary,
    small_disk: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """ENOSPC names the file; what was taken before is readable, what comes after space is free too."""
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 20_000)
    sink, _ = _opened(make_run(), log_dir=small_disk)
    taken = 0
    with pytest.raises(OSError, match="trackperf") as failure:
        for taken in range(0, 20_000, 7):
            sink.write(make_points(range(taken + 1, taken + 8), keys=KEYS))
    assert failure.value.errno == errno.ENOSPC
    assert 0 < taken < 20_000
    history = TensorBoardReader().read(str(small_disk))
    assert history.problems == ()
    assert history.series["perf/data_pct"].step.tolist() == list(range(1, taken + 1))
    filler.unlink()
    sink.write(make_points(range(taken + 1, taken + 8), keys=KEYS))
    filler.write_bytes(b"x" * 12_000)
    with pytest.raises(OSError, match="No space"):
        for step in range(20_000, 40_000):
            sink.write(make_points([step], keys=KEYS))
    sink.close(summary, Status.FINISHED)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    history = TensorBoardReader().read(str(small_disk))
    assert history.series["perf/data_pct"].step.tolist()[: taken + 7] == list(range(1, taken + 8))
    assert (history.problems, history.status) == ((), None)


def test_a_disk_full_from_the_start_leaves_no_empty_file(
    make_run: MakeRun, summary: RunSummary, small_disk: Path
) -> None:
    """Open raises, and no event file without a record is left for TensorBoard to find."""
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(b"x" * 8192):
            pass
    sink = TensorBoardSink(small_disk)
    with pytest.raises(OSError, match="trackperf"):
        sink.open(make_run())
    assert [file.name for file in small_disk.iterdir()] == ["filler"]
    sink.close(summary, Status.FAILED)


def test_a_write_that_stops_midway_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a record is cut off at once, or before the next one where that fails too."""
    file = EventFile(tmp_path / "file")
    file.append(b"first")
    write, truncate = os.write, os.ftruncate
    calls: list[int] = []

    def half(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:3])

    def fails(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", fails)
        with pytest.raises(OSError, match="No space"):
            file.append(b"second")
        with pytest.raises(OSError, match="Input/output"):
            file.append(b"third")
    assert file.path.read_bytes() == b"firstsec"
    assert os.ftruncate is truncate
    file.append(b"fourth")
    file.close()
    file.close()
    assert file.path.read_bytes() == b"firstfourth"
