"""The command line, called as a person calls it, on runs that are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from trackperf_tensorboard import TensorBoardSink

from trackperf.cli import _usage_error, main
from trackperf.record import Alert, Point, RunInfo, RunSummary, Stat, Status
from trackperf.rendering import ABSENT

if TYPE_CHECKING:
    from pathlib import Path

WALL = 1_700_000_000.0
STEPS = 100


def write_run(
    folder: Path, name: str, *, rate: float, data_pct: float, workers: int = 0, finished: bool = True
) -> Path:
    """Write a run of equal work at a steady rate, as training would."""
    sink = TensorBoardSink()
    step_ms = 8000 / rate
    values = {"perf/samples_per_s": rate, "perf/step_ms": step_ms, "perf/data_pct": data_pct}
    sink.open(
        RunInfo(
            run_id=f"{abs(hash(name)):032x}"[:32],
            name=name,
            dir=str(folder),
            started_at=WALL,
            loader={"num_workers": workers},
            absent={"perf/gpu_util_pct": "no NVIDIA GPU is visible to this process"},
        )
    )
    points = [
        Point(step=step, wall_time=WALL + step, values=values | {"perf/train_s": step * step_ms / 1e3})
        for step in range(1, STEPS + 1)
    ]
    sink.write(points)
    if finished:
        stats = {key: Stat(mean=value, p50=value, p95=value, n=STEPS) for key, value in values.items()}
        sink.alert(
            Alert(
                rule="loader_latency",
                state="raised",
                level="warning",
                step=9,
                wall_time=WALL,
                value=data_pct,
                threshold=10.0,
                cause="Data.",
            )
        )
        train_s = STEPS * step_ms / 1e3
        summary = RunSummary(steps=STEPS, samples=8 * STEPS, metrics=stats, phases={"train": train_s})
        sink.close(summary, Status.FINISHED)
    return folder / name


@pytest.fixture
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a slow run and a fast one below `runs`, and go to the folder above."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs", "slow", rate=100.0, data_pct=40.0)
    write_run(tmp_path / "runs", "fast", rate=200.0, data_pct=2.0, workers=2)
    return tmp_path


def say(*words: str) -> list[str]:
    """Return the command as another process runs it."""
    return [sys.executable, "-m", "trackperf", *words]


def test_help_needs_neither_torch_nor_a_tracker() -> None:
    """`trackperf --help` answers at once: no heavy package is imported for it."""
    code = (
        "import sys; from trackperf.cli import _usage_error, main; status = main(['--help'])\n"
        "heavy = {'torch', 'tensorboard', 'numpy', 'sklearn', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("demo", "doctor", "sinks", "runs", "compare"):
        assert f"  {command} " in done.stdout


def test_python_m_trackperf_is_the_command() -> None:
    """`python -m trackperf --version` prints the installed version."""
    from importlib.metadata import version

    done = subprocess.run(say("--version"), capture_output=True, text=True, check=True)
    assert done.stdout == f"trackperf {version('trackperf')}\n"


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`trackperf` alone is no mistake."""
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compear"], "No such command 'compear'. Did you mean 'compare'?"),
        (["runs", "--jsno"], "--json"),
        (["compare", "one"], "Missing argument 'RUN'"),
        (["demo", "--steps", "many"], "Invalid value for '--steps'"),
        (["demo", "--steps", "0"], "Invalid value for '--steps'"),
        (["runs", "nowhere"], "no run found at 'nowhere'"),
        (["compare", "nowhere", "there"], "no run found at 'nowhere'"),
        (["runs", "tensorbord:runs"], "no run found at 'tensorbord:runs'"),
    ],
)
def test_a_mistake_is_told_in_words(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Status 2, one message on standard error, nothing on standard output, and no traceback."""
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert told in printed.err
    assert "Traceback" not in printed.err


def test_the_nearest_command_is_named_by_any_typer(capsys: pytest.CaptureFixture[str]) -> None:
    """Older ones only say that there is no such command."""
    assert _usage_error(Exception(), "No such command 'docter'.") == 2
    assert "No such command 'docter'. Did you mean 'doctor'?\n" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An error of the operating system is a message too."""
    (tmp_path / "file").write_text("")
    assert main(["demo", "--dir", str(tmp_path / "file" / "runs"), "--steps", "1"]) == 2
    assert "error: " in capsys.readouterr().err


def test_runs_are_listed_with_dashes_for_what_is_absent(
    two_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPU use was not measured: a dash, not a zero; alerts are counted, an unfinished run is marked."""
    write_run(two_runs / "runs", "half", rate=50.0, data_pct=1.0, finished=False)
    assert main(["runs", "runs"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.split()}
    assert lines["slow"][1:] == [*_date(), "100", "100", "80.0", ABSENT, "40.0", "8", "s", "1", "finished"]
    assert lines["fast"][1:] == [*_date(), "100", "200", "40.0", ABSENT, "2.00", "4", "s", "1", "finished"]
    assert lines["half"][-1] == "unfinished"


def test_a_damaged_run_is_marked(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its status says so, and a line below the table says what is wrong."""
    (events,) = (two_runs / "runs" / "slow").glob("*tfevents*")
    events.write_bytes(events.read_bytes()[:-20])
    assert main(["runs", "runs"]) == 0
    printed = capsys.readouterr().out
    assert "damaged" in printed
    assert "slow: " in printed


def test_runs_below_are_named_by_their_place(
    two_runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two demos have runs of one name; the table tells them apart."""
    write_run(two_runs / "runs" / "demo", "slow", rate=10.0, data_pct=1.0)
    assert main(["runs", "runs"]) == 0
    assert "demo/slow" in capsys.readouterr().out


def test_listed_runs_as_json(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers are numbers, and what is absent is null."""
    assert main(["runs", "runs", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["slow"]["samples_per_s"] == 100.0
    assert rows["slow"]["gpu_util_pct"] is None


def test_runs_are_compared_by_name(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names below `runs` will do; table, differing setting, absent GPU and verdict are there."""
    assert main(["compare", "slow", "fast"]) == 0
    printed = capsys.readouterr().out
    assert "fast is better than slow: the same work took 50 % less time (4 s against 8 s)" in printed
    assert "num_workers: 0 against 2" in printed
    rows = {line.split("  ")[0].strip(): line.split() for line in printed.splitlines()}
    assert rows["samples per second"][-5:] == ["100", "200", "+100.0", "%", "better"]
    assert rows["GPU utilisation (%)"][-3:] == [ABSENT, ABSENT, ABSENT]
    assert "GPU utilisation: no NVIDIA GPU is visible to this process" in printed


def test_an_address_comes_before_a_name(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is there is that folder, and an address may name its reader."""
    write_run(two_runs, "slow", rate=400.0, data_pct=1.0)
    assert main(["compare", "tensorboard:runs/fast", "slow", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "better"
    rate = next(row for row in found["rows"] if row["key"] == "perf/samples_per_s")
    assert (rate["a"], rate["b"]) == (200.0, 400.0)


def test_doctor_says_what_is_measured_here(capsys: pytest.CaptureFixture[str]) -> None:
    """Every headline series is told, with the reason where it is absent; the versions are those installed."""
    from importlib.metadata import version

    from trackperf.metrics import HEADLINE

    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for metric in HEADLINE:
        assert metric.title in printed
    assert version("torch") in printed
    assert len(printed.splitlines()) <= 40
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    headline = {metric.key for metric in HEADLINE}
    assert set(found["measured"]) | (set(found["absent"]) & headline) == headline
    assert not set(found["measured"]) & set(found["absent"])
    for key in set(found["absent"]) & headline:
        assert f"no: {found['absent'][key]}" in printed
    assert set(found["host"]) == {"perf_host/cpu_pct", "perf_host/rss_gib"}


def test_sinks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each sink with who brings it, as a table and as JSON."""
    assert main(["sinks"]) == 0
    assert "tensorboard" in capsys.readouterr().out
    assert main(["sinks", "--json"]) == 0
    assert {"console", "jsonl", "tensorboard"} <= {one["name"] for one in json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("doctor",), ("doctor", "--json")])
def test_a_reader_that_has_gone_is_no_error(words: tuple[str, ...], unbuffered: str) -> None:
    """Nothing on standard error when a pipe was closed, noticed while writing or only at the end."""
    end, start = os.pipe()
    os.close(end)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        say(*words), stdout=start, stderr=subprocess.PIPE, text=True, env=environment, check=False
    )
    os.close(start)
    assert done.stderr == ""
    assert done.returncode == 1


def test_a_terminal_without_utf8_gets_its_table(two_runs: Path) -> None:
    """What it cannot show becomes a question mark; nothing fails."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        say("runs"), cwd=two_runs, env=environment, capture_output=True, text=True, check=True
    )
    assert "slow" in done.stdout
    assert done.stderr == ""


def test_an_interrupt_is_quiet(
    monkeypatch: pytest.MonkeyPatch, two_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends a command with 130 and says nothing."""
    _raise_in(monkeypatch, KeyboardInterrupt)
    assert main(["runs"]) == 130
    assert capsys.readouterr().err == ""


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch, two_runs: Path) -> None:
    """Only mistakes of the user's become one line: a bug keeps its traceback."""
    _raise_in(monkeypatch, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        main(["runs"])


def _raise_in(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    def fail(address: str) -> Any:
        raise error

    monkeypatch.setattr("trackperf.runs", fail)


def _date() -> list[str]:
    import time

    return time.strftime("%Y-%m-%d %H:%M", time.localtime(WALL)).split()
