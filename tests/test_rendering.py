"""Tables as a person reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trackperf.listing import RunRow
from trackperf.registry import SinkEntry
from trackperf.rendering import ABSENT, absent_lines, absent_of, console, figure, runs_table, sinks_table

if TYPE_CHECKING:
    from rich.console import RenderableType


def printed(what: RenderableType, width: int = 160) -> str:
    """Return what is printed on a console of that width."""
    out = console()
    out.width = width
    with out.capture() as capture:
        out.print(what)
    return capture.get()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, ABSENT),
        (0.0, "0"),
        (0.04213, "0.0421"),
        (0.9999, "1.00"),
        (8.426, "8.43"),
        (9.999, "10.0"),
        (51.23, "51.2"),
        (99.96, "100"),
        (1234.4, "1 234"),
        (-12.34, "-12.3"),
    ],
)
def test_three_digits_count(value: float | None, told: str) -> None:
    """A value has three digits that count, thousands apart; an absent one is a dash, zero is a zero."""
    assert figure(value) == told


def test_a_count_is_whole() -> None:
    """Steps have no decimals."""
    assert figure(46.0, whole=True) == "46"


def test_training_time_tells_what_was_done_twice() -> None:
    """A resumed run's lost steps stand beside its training time."""
    row = RunRow(name="a", source="tensorboard:runs/a", status="finished", train_s=30.0, redone_s=4.0)
    assert "30 s (+4 s redone)" in printed(runs_table([row], "runs"))


def test_a_run_that_cannot_be_read_has_a_row() -> None:
    """All its numbers are dashes, and what is wrong stands below."""
    row = RunRow(name="x", source="tensorboard:runs/x", status="unreadable", problems=("cut short",))
    table = printed(runs_table([row], "runs"))
    assert table.count(ABSENT) == 8
    assert "0" not in table
    assert "x: cut short" in table


@pytest.mark.parametrize(
    ("source", "address", "told"),
    [
        ("tensorboard:runs/demo/a", "runs", "demo/a"),
        ("tensorboard:runs/demo/a", "tensorboard:runs", "demo/a"),
        ("runs/demo/a", "./runs/", "demo/a"),
        ("tensorboard:runs/a", "runs/a", "name"),
        ("mlflow:1234", "mlflow:", "name"),
    ],
)
def test_a_run_is_named_by_its_place(source: str, address: str, told: str) -> None:
    """The path below what was asked for; its own name where there is none."""
    row = RunRow(name="name", source=source, status="finished")
    assert printed(runs_table([row], address)).splitlines()[3].split()[0] == told


def test_a_sink_says_what_it_lacks() -> None:
    """Ready, or the line that installs its tracker, or broken."""
    entries = [
        SinkEntry(name="here", distribution="trackperf 1", importable=True),
        SinkEntry(name="wandb", distribution="trackperf 1", importable=False, missing=("wandb",)),
        SinkEntry(name="gone", distribution="other 2", importable=False),
    ]
    ready, missing, broken = printed(sinks_table(entries)).splitlines()[3:6]
    assert "ready" in ready
    assert 'needs wandb: pip install "trackperf[wandb]"' in missing
    assert "broken: its module is not there" in broken


def test_reasons_are_told_once() -> None:
    """Series that are absent for one reason share a line; others and present ones have none."""
    absent = {"perf/gpu_util_pct": "no GPU", "perf/mem_bw_pct": "no GPU", "perf/mfu_pct": "no FLOPs"}
    lines = absent_lines(absent, ["perf/gpu_util_pct", "perf/mem_bw_pct", "perf/step_ms"])
    assert [line.plain for line in lines] == [f"{ABSENT} GPU utilisation, memory bandwidth: no GPU"]


def test_reasons_are_read_under_any_prefix() -> None:
    """A run written under another prefix has its reasons by catalogue key."""
    from trackperf.history import RunHistory
    from trackperf.record import RunInfo

    fields: dict[str, Any] = {"run_id": "1" * 32, "name": "a", "dir": "runs", "started_at": 0.0}
    info = RunInfo(**fields, prefix="speed", absent={"speed/gpu_util_pct": "no GPU"})
    history = RunHistory(name="a", source="runs/a", series={}, info=info)
    assert absent_of(history) == {"perf/gpu_util_pct": "no GPU"}
    assert absent_of(RunHistory(name="a", source="runs/a", series={})) == {}
