"""`trackperf.init(sink="wandb")` in processes that end in every way, held against another sink's file."""

from __future__ import annotations

import signal
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import wandb_parts
from trackperf_wandb import WandbReader
from wandb_parts import Server, files, records, rows, run_script, values

from trackperf.record import Status
from trackperf.sinks.jsonl import JsonlReader

if TYPE_CHECKING:
    from trackperf.history import RunHistory

pytestmark = pytest.mark.xdist_group("wandb_end_to_end")  # what `left` makes takes long

LIMIT_S = 7.0

HEAD = """
import socket
import trackperf
def begin(**options):
    return trackperf.init(sink=["wandb", "jsonl"], name="digits", interval_s=0.2, warmup_steps=2, **options)
def train(perf, steps, run=None):
    for i in perf.steps(range(steps), samples=8):
        time.sleep(0.01)
        if run is not None and i % 10 == 0:
            run.log({"loss": i}, step=i)
def online(url):
    os.environ.update(WANDB_MODE="online", WANDB_BASE_URL=url, WANDB_API_KEY="a" * 40)
def user():
    import wandb
    return wandb.init(project="p", settings=wandb.Settings(console="off", quiet=True))
def go(): print("go", flush=True)
"""

SCRIPTS = {
    "ends": """
        perf = begin(config={"lr": 0.1}, tags={"team": "vision"})
        train(perf, 60); perf.observe("val/acc", 0.5); go()
    """,
    "short": """
        perf = begin(); train(perf, 2); go()
    """,
    "raises": """
        perf = begin(); train(perf, 60); go(); raise ValueError("the user's own")
    """,
    "terminated": """
        perf = begin(); train(perf, 60); go(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)
    """,
    "refused": """
        online("http://127.0.0.1:9"); perf = begin(); train(perf, 60); go()
    """,
    "silent": """
        deaf = socket.create_server(("127.0.0.1", 0)); online(f"http://127.0.0.1:{deaf.getsockname()[1]}")
        perf = begin(); train(perf, 5); go()
    """,
    "guest_with": """
        with user() as run:
            perf = begin(); train(perf, 60, run)
        go()
    """,
    "guest_exit": """
        run = user(); perf = begin(); train(perf, 60, run); go()
    """,
    "guest_late": """
        perf = begin(); run = user(); train(perf, 60, run); perf.finish()
        run.log({"loss": -1}, step=60); go()
    """,
    "beside": """
        from trackperf_wandb import WandbSink
        run = user()
        perf = trackperf.init(sink=[WandbSink(join=False), "jsonl"], interval_s=0.2, warmup_steps=2)
        train(perf, 60, run); go()
    """,
    "killed": """
        perf = begin(); train(perf, 300); go(); os.kill(os.getpid(), signal.SIGKILL)
    """,
    "two": """
        first = begin(); train(first, 40); second = begin(); train(second, 60)
        import wandb
        assert wandb.run is None
        go()
    """,
}

# W&B is still being imported while these train, or end.
FRESH = {"ends", "short", "silent"}


@dataclass
class Left:
    """What a script left behind."""

    folder: Path
    code: int
    errors: str
    took: float

    @property
    def truth(self) -> RunHistory:
        """The run as the other sink has it."""
        return self.truths()[0]

    def truths(self) -> list[RunHistory]:
        """Return the runs as the other sink has them, in order of name."""
        return [JsonlReader().read(found) for found in JsonlReader().find(str(self.folder))]

    def read(self, number: int = 0) -> RunHistory:
        """Return a run as our reader finds it."""
        return WandbReader().read(str(files(self.folder)[number].parent))

    def records(self, number: int = 0) -> list[dict[str, Any]]:
        """Return a run's records as W&B's own reader prints them."""
        return records(files(self.folder)[number])


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Left]:
    """Run all scripts, a few at a time, and return what each left behind."""
    # Made here: the first of all has a race of its own with other threads.
    folders = {name: tmp_path_factory.mktemp(name) for name in SCRIPTS}

    def play(name: str) -> Left:
        folder = folders[name]
        done, took = run_script(HEAD + textwrap.dedent(SCRIPTS[name]), folder, fresh=name in FRESH)
        return Left(folder, done.returncode, done.stderr, took)

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(SCRIPTS, pool.map(play, SCRIPTS), strict=True))


def same_series(found: RunHistory, truth: RunHistory) -> None:
    """Hold two histories equal, point by point."""
    for key, series in truth.series.items():
        assert found.series[key].step.tolist() == series.step.tolist(), key
        assert found.series[key].value.tolist() == pytest.approx(series.value.tolist(), rel=1e-12), key
        assert found.series[key].wall_time.tolist() == pytest.approx(series.wall_time.tolist()), key


WHOLE = {
    "ends": (0, Status.FINISHED),
    "short": (0, Status.FINISHED),
    "raises": (1, Status.FAILED),
    "terminated": (-signal.SIGTERM, Status.KILLED),
    "refused": (0, Status.FINISHED),
    "silent": (0, Status.FINISHED),
    "guest_exit": (0, Status.FINISHED),
    "guest_late": (0, Status.FINISHED),
}


@pytest.mark.parametrize("name", WHOLE)
def test_however_the_process_ends_all_is_there(left: dict[str, Left], name: str) -> None:
    """Every point, the description, the summary and the true status, and an end within five seconds."""
    run, (code, status) = left[name], WHOLE[name]
    assert (run.code, run.took < LIMIT_S) == (code, True), run.errors
    found, truth = run.read(), run.truth
    same_series(found, truth)
    assert (found.info, found.summary, found.status) == (truth.info, truth.summary, status)
    assert found.name == "digits"


@pytest.mark.parametrize("name", ["guest_with", "guest_exit", "guest_late", "beside"])
def test_the_users_rows_are_untouched(left: dict[str, Left], name: str) -> None:
    """A guest leaves the user's rows at their steps, those after `perf.finish()` too."""
    every = [left[name].records(number) for number in range(len(files(left[name].folder)))]
    found = rows(next(found for found in every if not any(r.get("run", {}).get("job_type") for r in found)))
    logged = {row["_step"]: row["loss"] for row in found if "loss" in row}
    assert logged == {step: step for step in range(0, 60, 10)} | ({60: -1} if name == "guest_late" else {})


def test_a_run_that_the_user_finishes_first_has_the_last_window(left: dict[str, Left]) -> None:
    """The open window, the summary and the rest of the points are written when the user's run finishes."""
    found, truth = left["guest_with"].read(), left["guest_with"].truth
    same_series(found, truth)
    assert found.series["perf/step_ms"].step[-1] == 60
    assert found.summary is not None
    assert truth.summary is not None
    assert (found.summary.steps, found.summary.metrics) == (60, truth.summary.metrics)
    assert found.status == Status.FINISHED
    assert "not delivered" not in left["guest_with"].errors


def test_settings_and_tags_are_w_and_bs_own(left: dict[str, Left]) -> None:
    """A run of ours has the user's settings and tags where W&B looks for them, and columns for its table."""
    found = left["ends"].records()
    run = next(record["run"] for record in found if record["type"] == "run")
    assert (run["display_name"], run["tags"], len(run["run_id"])) == ("digits", ["team:vision"], 32)
    assert values(found, "config")["lr"] == 0.1
    assert values(found, "summary")["perf_summary/step_ms"] == pytest.approx(10, rel=0.5)
    exits = [record["exit"]["exit_code"] for record in found if record["type"] == "exit"]
    assert exits == [0]


def test_exit_codes_tell_how_it_ended(left: dict[str, Left]) -> None:
    """W&B shows a run that failed or was killed as failed."""
    codes = {
        name: [record["exit"]["exit_code"] for record in left[name].records() if record["type"] == "exit"]
        for name in ("raises", "terminated")
    }
    assert codes == {"raises": [1], "terminated": [130]}


@pytest.mark.parametrize("name", ["refused", "silent"])
def test_a_dead_server_is_said_once_with_the_line_that_sends_the_run(
    left: dict[str, Left], name: str
) -> None:
    """A server that refuses, or accepts and never answers, means a local file and one line."""
    line = f"Send it later with: wandb sync {files(left[name].folder)[0].parent}"
    assert left[name].errors.count("W&B does not take the run") == 1
    assert line in left[name].errors


def test_a_run_beside_the_users_is_in_its_group(left: dict[str, Left]) -> None:
    """With `join=False` the user's run gets nothing; ours has its group, and every point."""
    run = left["beside"]
    told = [next(r["run"] for r in run.records(number) if r["type"] == "run") for number in (0, 1)]
    ours = next(number for number in (0, 1) if told[number].get("job_type") == "trackperf")
    users = 1 - ours
    assert told[ours]["run_group"] == told[users]["run_id"]
    assert told[ours]["project"] == "p"
    assert not any("trackperf/step" in row for row in rows(run.records(users)))
    same_series(run.read(ours), run.truth)


def test_a_kill_costs_at_most_the_last_window(left: dict[str, Left]) -> None:
    """After SIGKILL the file holds all but the last two seconds, and the reader says that it has no end."""
    run = left["killed"]
    found, truth = run.read(), run.truth
    have, had = found.series["perf/step_ms"].step.tolist(), truth.series["perf/step_ms"].step.tolist()
    assert have == had[: len(have)]
    lost_s = float(truth.series["perf/step_ms"].wall_time[-1] - found.series["perf/step_ms"].wall_time[-1])
    assert lost_s <= 2.0
    assert (found.status, found.summary) == (None, None)
    assert any("has no end" in problem for problem in found.problems)


def test_two_runs_in_one_process_do_not_mix(left: dict[str, Left]) -> None:
    """Each has its points, and `wandb.run` stays the user's own."""
    run = left["two"]
    by_name = {found.name: found for found in (run.read(0), run.read(1))}
    assert "not delivered" not in run.errors, run.errors
    for truth in run.truths():
        same_series(by_name[truth.name], truth)
    assert len(by_name) == 2


def test_disabled_writes_nothing(tmp_path: Path) -> None:
    """With W&B switched off, by its environment or by the user's own run, training goes on without it."""
    body = """
    import trackperf, wandb
    perf = trackperf.init(sink="wandb"); [None for _ in perf.steps(range(3))]; perf.finish()
    os.environ.pop("WANDB_MODE")
    run = wandb.init(mode="disabled")
    perf = trackperf.init(sink="wandb"); [None for _ in perf.steps(range(3))]; perf.finish()
    """
    done, _ = run_script(body, tmp_path, WANDB_MODE="disabled")
    assert (done.returncode, files(tmp_path)) == (0, [])
    assert "trackperf: sink" not in done.stderr


def test_cycles_leave_nothing_behind(tmp_path: Path) -> None:
    """After 20 runs in a process, threads and open files are as many as after two."""
    body = """
    import trackperf
    def cycle():
        perf = trackperf.init(sink="wandb")
        for _ in perf.steps(range(3), samples=1): pass
        perf.finish()
    def count(): return threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(2): cycle()
    before = count()
    for _ in range(18): cycle()
    print(before, count())
    """
    done, _ = run_script(body, tmp_path)
    before, after = eval(f"[{done.stdout.strip().replace(') (', '),(')}]")
    assert len(files(tmp_path)) == 20
    assert all(abs(now - then) <= 1 for then, now in zip(before, after, strict=True)), done.stdout


def test_a_server_that_answers_gets_the_run(tmp_path: Path) -> None:
    """Online, the rows, the name and the exit code arrive."""
    server = Server()
    body = """
    sink = WandbSink(project="p")
    sink.open(INFO)
    sink.write([point(step) for step in range(1, 51)])
    print(sink.run.offline)
    sink.close(summary(50), Status.FAILED)
    """
    done, _ = run_script(
        body, tmp_path, WANDB_MODE="online", WANDB_BASE_URL=server.url, WANDB_API_KEY="a" * 40
    )
    server.close()
    assert done.stdout.split() == ["False"], done.stderr
    assert (server.rows, server.exit_codes) == (50, [1])
    assert "ours" in server.names


def test_a_server_that_dies_leaves_all_in_the_file_and_holds_nobody(tmp_path: Path) -> None:
    """Online, with a server gone by the end, the process ends within five seconds and the file is whole."""
    body = """
    sys.path.insert(0, PARTS)
    from wandb_parts import Server
    server = Server()
    os.environ.update(WANDB_MODE="online", WANDB_BASE_URL=server.url, WANDB_API_KEY="a" * 40)
    sink = WandbSink(project="p")
    sink.open(INFO)
    server.close()
    sink.write([point(step) for step in range(1, 51)])
    print("go", flush=True)
    sink.close(summary(50), Status.FINISHED)
    """.replace("PARTS", repr(str(Path(wandb_parts.__file__).parent)))
    done, took = run_script(body, tmp_path)
    assert (done.returncode, took < LIMIT_S) == (0, True), done.stderr
    found = WandbReader().read(str(files(tmp_path)[0].parent))
    assert found.series["perf/step_ms"].step.tolist() == list(range(1, 51))
    assert (found.status, found.problems) == (Status.FINISHED, ())


def test_no_key_is_said_at_init(tmp_path: Path) -> None:
    """Online without a key nothing waits at a prompt: `init` says what to do."""
    done, _ = run_script("WandbSink()", tmp_path, WANDB_MODE="online", WANDB_BASE_URL="http://127.0.0.1:9")
    assert "SinkError: W&B knows no API key for 127.0.0.1: run `wandb login`" in done.stderr
