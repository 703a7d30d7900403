"""The console sink: what a person reads."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from trackperf.record import Alert, Point, RunInfo, RunSummary, Stat, Status
from trackperf.sinks.console import ConsoleSink
from trackperf.testing import check_sink

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def info(prefix: str = "perf", resume_step: int | None = None) -> RunInfo:
    """Return a run."""
    return RunInfo(
        run_id="0" * 32, name="digits-1", dir="runs", started_at=1.7e9, prefix=prefix,
        resume_step=resume_step,
        names={"val/accuracy": "val/Accuracy (%)"},
    )  # fmt: skip


def alert(state: str = "raised", cause: str = "Waiting took 42 %.") -> Alert:
    """Return an alert."""
    return Alert(
        rule="loader_latency", state="raised" if state == "raised" else "cleared", level="warning", step=120,
        wall_time=1.7e9, value=42.0, threshold=10.0, cause=cause, advice="Use 4 workers.",
    )  # fmt: skip


def lines_of(*points: dict[str, float], prefix: str = "perf") -> list[str]:
    """Return the lines written for points at steps 100, 200, ..."""
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    sink.open(info(prefix))
    sink.write(
        [Point(step=100 * n, wall_time=1.7e9, values=values) for n, values in enumerate(points, start=1)]
    )
    return stream.getvalue().splitlines()[1:]


FULL = {
    "perf/samples_per_s": 1234.56,
    "perf/step_ms": 207.36,
    "perf/train_s": 3725.4,
    "perf/data_pct": 33.333,
    "perf_host/cpu_pct": 55.0,
}


def test_one_short_line_a_point() -> None:
    """A point is one line: step, throughput, time a step, share of waiting, training time."""
    assert lines_of(FULL) == ["step 100  1,234.6 samples/s  207.4 ms/step  data 33.3 %  trained 1:02:05"]


def test_what_was_not_measured_is_not_shown() -> None:
    """A value that is absent leaves no trace, neither 0 nor a dash."""
    assert lines_of({"perf/step_ms": 5.0}, {}) == ["step 100  5.0 ms/step", "step 200"]


def test_zero_is_shown() -> None:
    """A value of zero is a value."""
    assert lines_of({"perf/data_pct": 0.0}) == ["step 100  data 0.0 %"]


def test_another_prefix() -> None:
    """The headline is found under the run's own prefix."""
    assert lines_of({"speed/step_ms": 5.0, "speed_step/max_ms": 9.0}, prefix="speed") == [
        "step 100  5.0 ms/step"
    ]


def test_own_values_under_the_users_name() -> None:
    """What the user observes is shown under the name that the user gave."""
    assert lines_of({"val/accuracy": 0.97}) == ["step 100  val/Accuracy (%) 0.97"]


def test_alerts_and_end() -> None:
    """Alerts carry cause and advice; the end says status, steps, medians and losses."""
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    sink.open(info(resume_step=50))
    sink.alert(alert())
    sink.alert(alert("cleared", "Waiting took 3 %."))
    stat = Stat(mean=300.0, p50=301.18, p95=310.0, n=9)
    sink.close(
        RunSummary(
            steps=500, samples=32000, metrics={"perf/samples_per_s": stat}, phases={"train": 60.0},
            dropped={"points/wandb": 3},
        ),
        Status.KILLED,
    )  # fmt: skip
    assert stream.getvalue().splitlines() == [
        "trackperf: run digits-1, going on after step 50",
        "[warning] step 120 loader_latency: Waiting took 42 %. Use 4 workers.",
        "[ok] step 120 loader_latency: over. Waiting took 3 %.",
        "trackperf: killed after 500 steps, 32000 samples, 0:01:00 of training",
        "median:  301.2 samples/s",
        "lost: 3 points/wandb",
    ]


def test_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert stands out on a terminal; elsewhere no escape sequence is written."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for stream, coloured in ((Terminal(), True), (io.StringIO(), False)):
        sink = ConsoleSink(stream)
        sink.open(info())
        sink.alert(alert())
        assert ("\x1b[" in stream.getvalue()) is coloured


def test_a_long_or_hostile_line_stays_one_line() -> None:
    """Neither length, markup, line breaks nor escape sequences in a text break the log."""
    stream = Terminal()
    sink = ConsoleSink(stream)
    sink.open(info())
    before = stream.getvalue().count("\n")
    sink.alert(alert(cause="[red]x[/red] :smile: " + "long " * 100 + "\x1b[2J\nsecond"))
    written = stream.getvalue()
    assert written.count("\n") == before + 1
    assert "\x1b[2J" not in written
    assert "[red]x[/red] :smile:" in written


def test_standard_error_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a stream the lines go to whatever `sys.stderr` is when they are written."""
    sink = ConsoleSink()
    sink.open(info())
    later = io.StringIO()
    monkeypatch.setattr(sys, "stderr", later)
    sink.write([Point(step=3, wall_time=1.7e9, values={})])
    assert later.getvalue() == "step 3\n"


def test_the_contract() -> None:
    """The sink takes whatever trackperf may do with it."""
    check_sink(lambda: ConsoleSink(io.StringIO()))
