"""The reader: local files by W&B's own reader, and the server by a full scan."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from trackperf_wandb import WandbReader
from trackperf_wandb.rows import CONFIG, SUMMARY, alerts_json, config_of
from wandb_parts import files, run_script

from trackperf.codec import to_json
from trackperf.errors import ReadError
from trackperf.record import Alert, RunInfo, RunSummary, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("wandb_joined")

INFO = RunInfo(run_id="1" * 32, name="ours", dir="runs", started_at=1.7e9)
ALERT = Alert(
    rule="r", state="raised", level="notice", step=120, wall_time=1.0, value=1.0, threshold=0.5, cause="c"
)

WRITE = """
sink = WandbSink()
sink.open(INFO)
sink.write([point(step) for step in range(1, 1001)])
sink.close(summary(1000), Status.FINISHED)
import wandb
run = wandb.init(dir="users", settings=wandb.Settings(console="off", quiet=True))
for i in range(3): run.log({"loss": float(i), "note": "text", "bad": float("nan")})
run.finish()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of ours below `runs` and one of the user's below `users`."""
    made = tmp_path_factory.mktemp("read")
    (made / "users").mkdir()
    done, _ = run_script(WRITE, made)
    assert done.returncode == 0, done.stderr
    return made


def test_a_file_that_was_cut_is_read_as_far_as_it_goes(folder: Path, tmp_path: Path) -> None:
    """Half a file gives the rows of that half, no status, and sentences about it."""
    whole = files(folder / "runs")[0]
    cut = tmp_path / whole.name
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    history = WandbReader().read(str(cut))
    steps = history.series["perf/step_ms"].step.tolist()
    assert 300 < len(steps) < 700
    assert steps == list(range(1, len(steps) + 1))
    assert (history.status, history.summary, history.info is not None) == (None, None, True)
    assert any("is cut or damaged" in problem for problem in history.problems)
    assert any("has no end" in problem for problem in history.problems)


def test_what_is_no_file_of_records_is_an_error_with_its_name(tmp_path: Path) -> None:
    """An empty file, another file and a path that is not there each raise a sentence."""
    for name, content in (("empty.wandb", b""), ("other.wandb", b"not W&B at all" * 100)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ReadError, match=name):
            WandbReader().read(str(tmp_path / name))
    with pytest.raises(ReadError, match="offline-run-"):
        WandbReader().read(str(tmp_path / "gone"))


def test_a_run_that_is_not_ours_is_read_too(folder: Path) -> None:
    """A user's run gives its finite numbers by W&B's own step, and the status of its exit code."""
    history = WandbReader().read(str(files(folder / "users")[0].parent))
    assert list(history.series) == ["loss"]
    assert history.series["loss"].step.tolist() == [0, 1, 2]
    assert (history.info, history.status) == (None, Status.FINISHED)


def test_find_returns_each_run_once(folder: Path) -> None:
    """A folder gives its runs, a file itself, and what is neither nothing."""
    reader = WandbReader()
    every = [str(path.parent) for path in files(folder)]
    assert sorted(reader.find(str(folder))) == sorted(every)
    assert reader.find(every[0]) == [every[0]]
    assert reader.find(str(files(folder)[0])) == [str(files(folder)[0])]
    assert reader.find(__file__) == []
    assert reader.find("nowhere/at/all/here") == []
    assert reader.find(f"{Path(__file__).parent}/a/b") == []


class Api:
    """W&B's client as far as the reader uses it: `history` samples, only `scan_history` gives all."""

    def __init__(self, rows: list[dict[str, Any]], state: str = "finished") -> None:
        self.rows, self.state = rows, state

    def run(self, path: str) -> Any:
        """Return the run."""
        if not path.startswith("team/digits/"):
            raise ValueError(f"could not find run <{path}>")
        summary = RunSummary(steps=199, samples=None)
        return SimpleNamespace(
            name="shown", state=self.state,
            config={"lr": 0.1, CONFIG: config_of(INFO, joined=False)},
            summary={SUMMARY: to_json(summary), "trackperf/status": "finished",
                     "trackperf/alerts": alerts_json([ALERT])},
            history=lambda: self.rows[::100], scan_history=self.scan_history,
        )  # fmt: skip

    def scan_history(self, *, page_size: int) -> Iterator[dict[str, Any]]:
        """Yield every row."""
        yield from self.rows

    def runs(self, path: str) -> list[Any]:
        """Return the runs of a project."""
        return [SimpleNamespace(path=["team", "digits", name]) for name in ("b", "a")]


def _row(number: int, step: int, value: float) -> dict[str, Any]:
    return {"_step": number, "_timestamp": 1.7e9, "trackperf/step": step, "trackperf/time": 1.8e9 + step,
            "perf/step_ms": value, "perf/absent": None}  # fmt: skip


def test_the_server_is_read_by_a_full_scan() -> None:
    """30 000 rows come back as 30 000 points, with what the run is and how it ended."""
    api = Api([_row(number, number, float(number)) for number in range(30_000)])
    history = WandbReader(api=lambda: api).read("team/digits/abc")
    series = history.series["perf/step_ms"]
    assert (len(series), series.value.mean(), series.step[-1]) == (30_000, 14_999.5, 29_999)
    assert series.wall_time[5] == 1.8e9 + 5
    assert (history.info, history.status, history.alerts) == (INFO, Status.FINISHED, (ALERT,))
    assert (list(history.series), history.problems) == (["perf/step_ms"], ())


def test_a_run_that_was_resumed_on_the_server_has_each_step_once() -> None:
    """Steps 0 to 149, then again from 100 to 199: 200 steps, the later values standing."""
    first = [_row(step, step, 1.0) for step in range(150)]
    second = [_row(150 + step, step, 2.0) for step in range(101, 200)]
    second[0]["trackperf/resume_step"] = 100
    history = WandbReader(api=lambda: Api(first + second)).read("team/digits/abc")
    series = history.series["perf/step_ms"]
    assert series.step.tolist() == list(range(200))
    assert series.value[[100, 120]].tolist() == [1.0, 2.0]
    assert history.redone_steps == 49


def test_a_crash_on_the_server_is_a_problem_and_no_status() -> None:
    """W&B's word for a run that stopped reporting is passed on."""
    history = WandbReader(api=lambda: Api([_row(0, 1, 1.0)], state="crashed")).read("team/digits/abc")
    assert (history.status, history.problems) == (None, ("the run has not ended well: it is crashed",))


def test_runs_of_a_project_are_found_and_one_that_is_not_there_is_an_error() -> None:
    """`entity/project/*` lists; an unknown run raises with its name."""
    reader = WandbReader(api=lambda: Api([]))
    assert reader.find("team/digits/*") == ["team/digits/a", "team/digits/b"]
    assert reader.find("team/digits/a") == ["team/digits/a"]
    with pytest.raises(ReadError, match="does not give the run 'team/other/a'"):
        reader.read("team/other/a")
