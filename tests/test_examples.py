"""Each example as its docstring says to run it, with small settings, and what it leaves behind."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from trackperf.record import Status
from trackperf.registry import find_runs, read_run

if TYPE_CHECKING:
    from trackperf.history import RunHistory

pytestmark = pytest.mark.timeout(180)

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(folder: Path, name: str, *options: str) -> str:
    """Run an example and return what it printed."""
    # Threads that wait for each other on a busy machine take minutes where one takes seconds.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def only_run(folder: Path) -> RunHistory:
    """Return the one run that is there, which came to its end and is sound."""
    (address,) = find_runs(str(folder))
    history = read_run(address)
    assert history.problems == ()
    assert history.status is Status.FINISHED
    assert history.summary is not None
    return history


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_the_docstring_has_the_command(example: Path) -> None:
    """What to type stands at the top, and every option in it is one of the example's."""
    text = example.read_text()
    commands = re.findall(rf"^    python examples/{example.name}(.*)$", text, re.MULTILINE)
    assert commands
    for option in re.findall(r"--\w+", " ".join(commands)):
        assert f'"{option}"' in text


def test_minimal(tmp_path: Path) -> None:
    """Two lines, and throughput, time and loading are in TensorBoard; nobody called finish()."""
    run(tmp_path, "minimal.py", "--steps", "40")
    history = only_run(tmp_path / "runs")
    assert history.summary
    assert history.summary.steps == 40
    assert history.summary.samples == 40 * 64
    for key in ("perf/samples_per_s", "perf/train_s", "perf/step_ms", "perf/data_pct", "perf/data_wait_ms"):
        assert history.series[key].value[-1] > 0, key
    assert "perf/gpu_util_pct" not in history.series


def test_train_text_and_its_resume(tmp_path: Path) -> None:
    """Tokens, phases, a goal; the second process goes on in the same run, with its steps and its time."""
    run(tmp_path, "train_text.py", "--steps", "14")
    first = only_run(tmp_path / "runs")
    assert first.summary
    assert first.summary.tokens == 14 * 32 * 64
    assert first.series["perf/tokens_per_s"].value[-1] > 0
    assert first.summary.phases["eval"] > 0
    assert first.summary.phases["checkpoint"] > 0
    assert first.info
    assert first.info.environment["goal"] == "val/loss <= 2.2"

    printed = run(tmp_path, "train_text.py", "--steps", "28", "--resume")
    second = only_run(tmp_path / "runs")
    assert second.summary
    assert second.name == first.name
    assert f"{first.name}: 28 steps" in printed
    assert second.summary.steps == 28
    assert second.summary.tokens == 28 * 32 * 64
    assert second.summary.train_s > first.summary.train_s
    assert second.redone_steps == 0
    steps = second.series["perf/train_s"].step
    assert steps[0] <= 14
    assert steps[-1] == 28
    assert (second.series["perf/train_s"].value[1:] >= second.series["perf/train_s"].value[:-1]).all()
    losses = second.series["perf_observed/val/loss"]
    assert losses.step.tolist() == [14, 28]
    assert losses.value[1] < losses.value[0], "it learns on, it does not begin anew"


def test_a_checkpoint_that_is_far_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To resume with steps that are all done is a mistake, said in a line; no run is begun."""
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    torch.save({"step": 28}, tmp_path / "train_text.pt")
    main = runpy.run_path(str(EXAMPLES / "train_text.py"))["main"]
    with pytest.raises(SystemExit, match="has done 28 steps already: give --steps a larger number"):
        main(28, str(tmp_path), resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["train_text.pt"]
