"""The sink alone: the contract, what W&B shows of an alert, and what waits when the user does not log."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from trackperf_wandb import WandbSink
from trackperf_wandb.joined import JoinedRun
from trackperf_wandb.rows import own_key, row_of, section_of
from wandb_parts import files, records, run_script, values

from trackperf.errors import SinkError
from trackperf.record import Point

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("wandb_joined")

KIT = """
from trackperf.testing import check_sink
from trackperf_wandb import WandbReader
def read(info):
    reader = WandbReader()
    found = [address for address in reader.find(info.dir) if info.run_id in address]
    history = reader.read(found[0])
    assert len(found) == 1, found
    assert history.info == info or history.info.config["odd"] is None
    assert not history.problems, history.problems
    return history
check_sink(WandbSink, read=read)
"""


def test_the_contract(tmp_path: Path) -> None:
    """The kit for sinks passes with W&B offline, every point held against W&B's own reader."""
    done, _ = run_script(KIT, tmp_path, timeout=110)
    assert done.returncode == 0, done.stderr


def test_an_alert_is_told_and_kept(tmp_path: Path) -> None:
    """A raised alert becomes W&B's own with its level; both states are kept whole, and in words."""
    body = """
    def alert(state, level="warning"):
        return Alert(rule="loader_latency", state=state, level=level, step=7, wall_time=1.7e9, value=33.0,
                     threshold=10.0, cause="A third is waiting.", advice="Use 4 workers.")
    import dataclasses
    sink = WandbSink(group="g", job_type="rank0", project="p")
    sink.open(INFO)
    sink.alert(alert("raised")); sink.alert(alert("cleared")); sink.alert(alert("raised", "notice"))
    sink.close(dataclasses.replace(summary(7), alerts=(alert("raised"),)), Status.FINISHED)
    sink.close(summary(7), Status.FAILED)
    """
    done, _ = run_script(body, tmp_path)
    assert done.returncode == 0, done.stderr
    found = records(files(tmp_path)[0])
    told = [record["alert"] for record in found if record["type"] == "alert"]
    assert [(one["level"], one["wait_duration"]) for one in told] == [("WARN", "300000"), ("INFO", "300000")]
    assert told[0]["title"] == "trackperf: loader_latency"
    assert told[0]["text"] == "Step 7: A third is waiting. Use 4 workers."
    kept = json.loads(values(found, "summary")["trackperf/alerts"])
    assert [one["state"] for one in kept] == ["raised", "cleared", "raised"]
    runs = [record["run"] for record in found if record["type"] == "run"]
    assert (runs[0]["run_group"], runs[0]["job_type"], runs[0]["project"]) == ("g", "rank0", "p")
    assert runs[-1]["notes"] == "loader_latency: Step 7: A third is waiting. Use 4 workers."
    assert [record["exit"]["exit_code"] for record in found if record["type"] == "exit"] == [0]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Open raises with the path, and nothing goes to a temporary folder unasked."""
    (tmp_path / "runs").write_text("a file")
    done, _ = run_script("sink = WandbSink(); sink.open(INFO)", tmp_path)
    assert "FileExistsError" in done.stderr
    assert str(tmp_path / "runs") in done.stderr


def test_an_unknown_mode_is_refused() -> None:
    """The message says which modes there are."""
    with pytest.raises(SinkError, match="no mode 'onlin'; it has: online, offline, shared, disabled"):
        WandbSink(mode="onlin")


def test_importing_the_adapter_imports_no_tracker(tmp_path: Path) -> None:
    """W&B is loaded by construction, not by import."""
    body = "print('wandb' in sys.modules, 'torch' in sys.modules)"
    done, _ = run_script(body, tmp_path, fresh=True)
    assert done.stdout.split() == ["False", "False"]


def test_rows_hold_finite_numbers_only() -> None:
    """NaN and infinity are left out and counted; a row of ours has our time, one of the user's keeps his."""
    point = Point(step=3, wall_time=9.5, values={"perf/a": 1, "b": float("nan"), "c": float("inf")})
    assert row_of(point, joined=None) == (
        {"perf/a": 1.0, "trackperf/step": 3, "trackperf/time": 9.5, "_timestamp": 9.5},
        2,
    )
    assert row_of(point, joined="perf") == ({"perf/a": 1.0, "trackperf/step": 3, "trackperf/time": 9.5}, 2)


def test_keys_in_the_users_run_are_ours_alone() -> None:
    """What `observe` gave moves to a section of its own; sections share an x axis."""
    assert [own_key(key, "perf") for key in ("perf/a", "perf_gpu0/b", "val/acc", "perfect")] == [
        "perf/a", "perf_gpu0/b", "perf_observed/val/acc", "perf_observed/perfect",
    ]  # fmt: skip
    assert [section_of(key) for key in ("perf/a", "perf_observed/val/acc", "loss")] == [
        "perf/*", "perf_observed/*", "loss",
    ]  # fmt: skip


class UserRun:
    """The user's run as far as a guest sees it, at a row that the test sets."""

    def __init__(self, mode: str = "online") -> None:
        self.id = "abc"
        self.step = 0
        self.logged: list[tuple[dict[str, Any], bool]] = []
        self.settings = SimpleNamespace(mode=mode)
        self._teardown_hooks: list[Any] = []

    def log(self, row: dict[str, Any], *, commit: bool) -> None:
        """Keep the row."""
        self.logged.append((row, commit))
        self.step += commit

    def steps(self) -> list[int]:
        """Return the steps of ours so far."""
        return [row["trackperf/step"] for row, _ in self.logged if row]


def _point(step: int) -> Point:
    return Point(step=step, wall_time=1.0, values={"perf/a": 1.0})


def test_a_guest_that_must_wait_too_long_counts_what_gives_way(caplog: pytest.LogCaptureFixture) -> None:
    """Without rows of the user's, a bounded number of values waits, the newest; the rest is counted."""
    run = UserRun()
    guest = JoinedRun(run, "perf", max_values=30)
    for step in range(1, 31):
        guest.log(_point(step), {})
    assert (run.steps(), guest.lost) == ([1], 19)
    run._teardown_hooks[0].call()
    assert run.steps() == [1, *range(21, 31)]
    assert [commit for _, commit in run.logged] == [False] + [True] * 11
    assert guest.gone
    assert not caplog.records


def test_a_guest_that_waits_long_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """From a hundred points on, one line says how to see them at once."""
    guest = JoinedRun(UserRun(), "perf")
    with caplog.at_level(logging.WARNING, "trackperf"):
        for step in range(150):
            guest.log(_point(step), {})
    assert [record.getMessage().count("WandbSink(join=False)") for record in caplog.records] == [1]


def test_in_a_shared_run_points_are_rows_of_their_own() -> None:
    """The server numbers a shared run's rows, so that there is nothing to wait for."""
    run = UserRun("shared")
    guest = JoinedRun(run, "perf")
    for step in (1, 2, 3):
        guest.log(_point(step), {})
    assert [commit for _, commit in run.logged] == [True] * 3


def test_a_row_that_has_ours_gets_no_second() -> None:
    """Ours goes on a row once, also when the user logs between our asking and our writing."""
    run = UserRun()
    guest = JoinedRun(run, "perf")
    log = run.log

    def slow(row: dict[str, Any], *, commit: bool) -> None:
        run.step += 1  # the user's own log came first, and ours is on the row after it
        log(row, commit=commit)

    run.log = slow  # type: ignore[method-assign]
    guest.log(_point(1), {})
    run.log = log  # type: ignore[method-assign]
    guest.log(_point(2), {})
    assert run.steps() == [1]
    run.step += 1
    guest.log(_point(3), {})
    assert run.steps() == [1, 2]
