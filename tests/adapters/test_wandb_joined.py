"""The sink as a guest in the user's run: his rows keep their steps, and all of ours are there at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from wandb_parts import files, records, rows, run_script, values

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("wandb_joined")  # what `played` makes takes long

OURS = 60
ROWS = 200

# Each order of the user's logging, and how his run and ours end; all at once, each in a run of its own.
ORDERS = """
import wandb
ROWS, OURS = 200, 60

def no_step(run, i): run.log({"loss": i})
def step(run, i): run.log({"loss": i}, step=i)
def tens(run, i): run.log({"loss": i}, step=10 * i)
def twice(run, i):
    run.log({"loss": i}, step=i)
    run.log({"acc": -i}, step=i)
def partial(run, i):
    run.log({"loss": i}, commit=False)
    run.log({"acc": -i})
def never(run, i): pass
def rare(run, i):
    if i % 90 == 0: run.log({"loss": i}, step=i)

def play(name, log, end):
    run = wandb.init(project="p", name=f"{name}-{end}", settings=wandb.Settings(console="off", quiet=True))
    sink = WandbSink()
    begun = threading.Event()
    def ours():
        sink.open(INFO)
        assert sink.run is run
        begun.set()
        for s in range(1, OURS + 1):
            sink.write([point(s)])
    thread = threading.Thread(target=ours)
    thread.start()
    begun.wait(10)
    for i in range(ROWS): log(run, i)
    thread.join()
    if end == "user":
        run.finish()
        sink.close(summary(OURS), Status.FINISHED)
    else:
        sink.close(summary(OURS), Status.FINISHED)
        for i in range(ROWS, ROWS + 5): log(run, i)
        if end == "ours": run.finish()

orders = {f.__name__: f for f in (no_step, step, tens, twice, partial, never, rare)}
for name, log in orders.items():
    play(name, log, "ours")
play("step", step, "user")
play("twice", twice, "user")
play("never", never, "user")
play("step", step, "exit")
"""


def expected(order: str, count: int) -> dict[int, dict[str, int]]:
    """Return the user's rows by their step, as they are without us."""
    if order == "never":
        return {}
    rare = range(0, count, 90) if order == "rare" else range(count)
    both = order in {"twice", "partial"}
    return {i * (10 if order == "tens" else 1): {"loss": i, **({"acc": -i} if both else {})} for i in rare}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Play all orders in one process and return the records of each run by its name."""
    folder = tmp_path_factory.mktemp("orders")
    done, _ = run_script(ORDERS, folder)
    assert done.returncode == 0, done.stderr
    assert "ignored" not in done.stderr
    read = [records(path) for path in files(folder)]
    names = [next(r["run"]["display_name"] for r in found if r["type"] == "run") for found in read]
    return dict(zip(names, read, strict=True))


CASES = [f"{order}-ours" for order in ("no_step", "step", "tens", "twice", "partial", "never", "rare")]
CASES += ["step-user", "twice-user", "never-user", "step-exit"]


@pytest.mark.parametrize("case", CASES)
def test_the_users_rows_keep_their_steps_and_ours_are_all_there(
    played: dict[str, list[dict[str, Any]]], case: str
) -> None:
    """Whoever ends first: the user's rows stand as without us, and each point of ours stands once."""
    order, _, end = case.partition("-")
    found = rows(played[case])
    users = {
        row["_step"]: {key: row[key] for key in ("loss", "acc") if key in row}
        for row in found
        if "loss" in row or "acc" in row
    }
    assert users == expected(order, ROWS if end == "user" else ROWS + 5)
    ours = [row for row in found if "trackperf/step" in row]
    assert [row["trackperf/step"] for row in ours] == list(range(1, OURS + 1))
    assert [row["perf/step_ms"] for row in ours] == list(range(1, OURS + 1))
    assert [row["perf_observed/loss"] for row in ours] == [-1.0] * OURS
    assert [row["trackperf/time"] for row in ours] == [1.7e9 + step for step in range(1, OURS + 1)]
    assert all("trackperf/step" in row or "loss" in row for row in found)


@pytest.mark.parametrize("case", ["step-ours", "step-user"])
def test_a_joined_run_carries_what_trackperf_knows(
    played: dict[str, list[dict[str, Any]]], case: str
) -> None:
    """Settings go below one key of the configuration, our series get our own step, the summary is there."""
    found = played[case]
    assert values(found, "config")["trackperf"]["joined"] is True
    metrics = [record["metric"] for record in found if record["type"] == "metric"]
    globs = {metric["glob_name"]: metric["step_metric"] for metric in metrics if "glob_name" in metric}
    assert globs == {"perf/*": "trackperf/step", "perf_observed/*": "trackperf/step"}
    if case == "step-ours":
        assert values(found, "summary")["trackperf/status"] == "finished"


def test_a_run_that_was_finished_before_is_said_with_what_to_do(tmp_path: Path) -> None:
    """A point after the user's finish is refused with a sentence that names the order."""
    body = """
    import wandb
    run = wandb.init(settings=wandb.Settings(console="off", quiet=True))
    sink = WandbSink()
    sink.open(INFO)
    run.finish()
    try: sink.write([point(1)])
    except RuntimeError as error: print(error)
    sink.close(summary(1), Status.FINISHED)
    """
    done, _ = run_script(body, tmp_path)
    assert "was finished before trackperf was; call perf.finish() before wandb.finish()" in done.stdout
    assert done.returncode == 0
