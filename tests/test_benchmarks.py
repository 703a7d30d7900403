"""The benchmark's parts, at tiny sizes: that they run and count right, never how fast anything is."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import bench, peers
from benchmarks.loops import Loader
from benchmarks.reference import Stopwatch, collect
from benchmarks.report import Report, machine
from benchmarks.rows import BARE, Row, Sizes, in_turns, median, median_ratio

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = Path(__file__).parent / "benchmarks" / "bench.py"


def _row(name: str, spend: Callable[[int], None], order: list[str]) -> Row:
    def run(steps: int) -> None:
        order.append(name)
        spend(steps)

    return Row(name=name, run=run, steps=10, settle=lambda: order.append(f"{name} settles"))


def test_rows_take_turns_and_the_bare_loop_is_taken_off() -> None:
    """Each repeat runs every row once and settles it; the first repeat does not count."""
    times = {"now": 0}
    order: list[str] = []

    def spend(ns: int) -> Callable[[int], None]:
        return lambda steps: times.update(now=times["now"] + ns * steps)

    rows = [_row(BARE, spend(5), order), _row("a", spend(25), order), _row("b", spend(45), order)]
    costs = in_turns(rows, 3, lambda: times["now"])
    assert costs == {BARE: [5.0] * 3, "a": [20.0] * 3, "b": [40.0] * 3}
    assert order[:6] == [BARE, f"{BARE} settles", "a", "a settles", "b", "b settles"]
    assert len(order) == 4 * 6


def test_a_ratio_is_taken_within_a_repeat() -> None:
    """One slow repeat, or an odd one, does not change the ratio of two rows."""
    costs = {"ours": [1.0, 10.0, 1.0, 40.0], "theirs": [2.0, 20.0, 2.0, 10.0]}
    assert median(costs, "theirs") == 6.0
    assert median_ratio(costs, "ours", "theirs") == 0.5


def test_the_reference_hands_out_what_the_loader_has() -> None:
    """The batches come through untouched, and there is a mark for each, in full buffers and a last one."""
    batches = [object() for _ in range(5000)]
    full: deque[Any] = deque()
    assert list(collect(batches, full)) == batches
    assert [len(marks) for marks in full] == [4096, 904]
    assert all(begin <= handed <= end for marks in full for begin, handed, end in marks)


def test_the_stopwatch_adds_up() -> None:
    """Time only goes up, and a body that raises is timed as well."""
    watch = Stopwatch()
    with watch:
        pass
    before = watch.total_ns
    with pytest.raises(ValueError, match="body"), watch:
        raise ValueError("body")
    assert watch.total_ns > before > 0


def test_the_loader_gives_one_batch_again_and_again() -> None:
    """A pass has the length asked for, and every batch is the same pair of tensors."""
    loader = Loader()
    seen = list(loader.of(3))
    assert len(seen) == 3
    assert all(batch is loader.batch for batch in seen)
    assert [part.shape[0] for part in seen[0]] == [32, 32]


def test_a_package_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other rows are there, and the report names the package that is not."""

    def missing(*_: object) -> Row:
        raise ModuleNotFoundError("No module named 'lightning'")

    monkeypatch.setattr(peers, "_lightning", missing)
    report = Report()
    monkeypatch.setattr(peers, "_one_logger", missing)
    monkeypatch.setattr(peers, "_traceml", missing)
    rows = peers.peer_rows(Loader(), tmp_path, Sizes(repeats=1, scale=0.01), report)
    assert [row.name for row in rows] == [peers.SUMMARY_WRITER]
    assert report.skipped[0] == "pytorch-lightning is not installed (No module named 'lightning')"


def test_a_floor_is_kept_or_missed() -> None:
    """A limit is kept from its own side, the limit itself included, and one miss is enough."""
    report = Report()
    report.at_most("cost", 3.0, 3.0, "x")
    report.at_least("speed", 10.0, 10.0, "x")
    assert report.ok
    missed = Report()
    missed.at_most("cost too high", 3.01, 3.0, "x")
    missed.at_least("speed too low", 9.99, 10.0, "x")
    missed.at_least("speed", 10.0, 10.0, "x")
    assert not missed.ok
    assert [floor.verdict for floor in missed.floors] == ["MISSED", "MISSED", "ok"]


def test_the_machine_is_told_and_the_host_is_not() -> None:
    """Processor and versions, but no name that a machine was given."""
    told = machine()
    assert {"cpu", "cpus", "python", "torch", "tensorboard"} <= told.keys()
    assert platform.node() not in told.values()


def test_a_missed_floor_is_an_error_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 0 without `--check` and 1 with it; the table and the file say MISSED both times."""

    def measured(*_: object, **__: object) -> Report:
        report = Report(machine={"cpu": "abacus"})
        report.figure("A step", "ours", 1234.5, "us")
        report.at_most("cost", 4.0, 3.0, "x")
        report.skipped.append("tbparse is not installed")
        return report

    monkeypatch.setattr(bench, "measure", measured)
    file = tmp_path / "results.json"
    assert bench.main(["--json", str(file), "--markdown"]) == 0
    markdown = capsys.readouterr().out
    assert "| cost | 4.00 x | at most 3.00 x | MISSED |" in markdown
    assert "| ours | 1 234 us |" in markdown
    assert "Left out: tbparse is not installed." in markdown
    assert bench.main(["--json", str(file), "--check"]) == 1
    assert "MISSED" in capsys.readouterr().out
    assert json.loads(file.read_text())["floors"][0]["ok"] is False


@pytest.mark.timeout(180)
def test_the_whole_benchmark_runs(tmp_path: Path) -> None:
    """Run as `make bench` runs it, every section has figures and every floor a verdict; nothing is raised."""
    command = [sys.executable, str(SCRIPT), "--scale", "0.002", "--repeats", "1", "--json", "results.json"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    sections = {figure["section"].split(":")[0].split(",")[0] for figure in results["figures"]}
    assert sections == {
        "A step in the training thread", "All in", "Into an event file", "Read back", "Memory", "Late steps",
        "GPU readings", "Into MLflow's SQLite",
    }  # fmt: skip
    assert len(results["floors"]) >= 14
    rows = {figure["row"] for figure in results["figures"]}
    assert {"reference collector", "perf.steps(loader)", "TensorBoardReader", "EventAccumulator"} <= rows
    assert "Traceback" not in done.stderr
