"""The demo: its parts, and the whole of it as a person runs it."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trackperf.advice import loader_advice
from trackperf.cli import main
from trackperf.demo.data import SIDE, Draws, write_images
from trackperf.demo.show import workers_for
from trackperf.history import RunHistory, Series
from trackperf.loaders import LoaderFacts
from trackperf.record import Alert, RunSummary, Stat
from trackperf.registry import read_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

COMMAND = """
import sys
from trackperf.cli import main
from trackperf.demo import data, show
{settings}
sys.exit(main())
"""
SHORT = COMMAND.format(settings="show._QUICK_S = 4.0")
"""The command `trackperf`, with a first run that suits windows of half a second."""

SMALL = COMMAND.format(settings="data._FILE_SIDE = 40")
"""The command with images that are drawn and decoded in no time."""


def measured(step_ms: float, wait_ms: float, *, at: int = 40) -> RunHistory:
    """Return a run that measured this in one window, and twice as much on the whole."""
    values = {"perf/step_ms": step_ms, "perf/data_wait_ms": wait_ms}
    series = {
        key: Series(step=np.array([10, at]), wall_time=np.zeros(2), value=np.array([1.0, value]))
        for key, value in values.items()
    }
    stats = {key: Stat(mean=2 * value, p50=2 * value, p95=value, n=9) for key, value in values.items()}
    summary = RunSummary(steps=100, samples=800, metrics=stats)
    return RunHistory(name="starving", source="runs/starving", series=series, summary=summary)


def raised(step: int) -> Alert:
    """Return an alert of a step."""
    return Alert(
        rule="loader_latency",
        state="raised",
        level="warning",
        step=step,
        wall_time=0.0,
        value=40.0,
        threshold=10.0,
        cause="",
    )


def test_the_second_run_does_what_the_advice_says() -> None:
    """On any machine, at any ratio of costs, the number of workers is the one that the advice names."""
    facts = LoaderFacts(kind="DataLoader", is_dataloader=True, num_workers=0)
    told = 0
    for cpus, wait_ms in itertools.product(
        (2.0, 3.5, 4.0, 16.0), (5.0, 30.0, 60.0, 99.0, 101.0, 180.0, 900.0)
    ):
        text = loader_advice(facts, step_ms=100 + wait_ms, wait_ms=wait_ms, allowed_cpus=cpus)
        if "will not help" in text:
            continue
        told += 1
        found = re.search(r"num_workers=(\d+)", text)
        assert found, text
        assert workers_for(measured(100 + wait_ms, wait_ms), raised(40), cpus=cpus) == int(found[1]), text
    assert told > 20


def test_the_numbers_are_those_of_the_alert() -> None:
    """The window that the alert was raised in counts; without an alert the medians; without numbers, 2."""
    history = measured(130.0, 30.0)
    assert workers_for(history, raised(40), cpus=8) == 1
    one_ms = workers_for(history, raised(10), cpus=8)
    assert one_ms == 2, "a window that did nothing but wait says nothing"
    assert workers_for(measured(300.0, 250.0), None, cpus=8) == 5
    empty = RunHistory(name="a", source="runs/a", series={})
    assert workers_for(empty, None, cpus=8) == 2


def test_one_cpu_has_room_for_one_worker() -> None:
    """Never less than one worker, never more than CPUs."""
    assert workers_for(measured(900.0, 800.0), raised(40), cpus=1.0) == 1
    assert workers_for(measured(900.0, 800.0), raised(40), cpus=0.5) == 1


def test_the_images_are_files_that_are_decoded(tmp_path: Path) -> None:
    """Every digit is a JPEG of its own; an item depends on its draw and its image, and on nothing else."""
    train, validation = write_images(tmp_path)
    files = sorted(tmp_path.glob("*.jpg"))
    assert len(files) == len(train) + len(validation) == 1797
    assert all(file.read_bytes()[:2] == b"\xff\xd8" for file in files[:20])
    assert not set(train.files) & set(validation.files)
    pixels, label = train[3, 5]
    assert pixels.shape == (1, SIDE, SIDE)
    assert pixels.dtype == np.float32
    assert 0 <= pixels.min() < pixels.max() <= 1
    again, same = train[3, 5]
    assert label == same == train.labels[5]
    assert np.array_equal(pixels, again)
    assert not np.array_equal(pixels, train[4, 5][0])
    images, labels = validation.plain()
    assert images.shape == (len(validation), 1, SIDE, SIDE)
    assert set(labels.tolist()) == set(range(10))


def test_draws_go_round_the_set() -> None:
    """Each image once before any comes again, in another order then; numbered through; the same each time."""
    draws = list(Draws(5, 12))
    assert [draw for draw, _ in draws] == list(range(12))
    images = [image for _, image in draws]
    assert sorted(images[:5]) == sorted(images[5:10]) == list(range(5))
    assert images[:5] != images[5:10]
    assert draws == list(Draws(5, 12))
    assert draws[:7] == list(Draws(5, 7))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    """Without torch there is one line with the package and the command that installs it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert main(["demo", "--dir", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "'torch'" in told
    assert 'pip install "trackperf[demo]"' in told


def test_the_demo_as_a_person_runs_it(tmp_path: Path) -> None:
    """Two real trainings: the first raises the alert, the second waits less, and everything is told."""
    command = [sys.executable, "-c", SHORT, "demo", "--quick"]
    environ = {**os.environ, "TRACKPERF_INTERVAL_S": "0.5"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    starving, fed = (read_run(str(tmp_path / "runs" / "demo" / name)) for name in ("starving", "fed"))
    _check_runs(starving, fed)
    alert = next(one for one in starving.alerts if one.state == "raised")
    assert alert.cause in done.stdout
    assert alert.advice in done.stdout
    assert re.search(r"fed is .*than starving: |fed and starving are the same", done.stdout)
    for words in ("samples per second", "training time (s)", "GPU utilisation (%)", "memory bandwidth (%)"):
        assert words in done.stdout
    assert starving.info
    for key in ("perf/gpu_util_pct", "perf/mem_bw_pct"):
        assert starving.info.absent.get(key, "") in done.stdout
    assert re.search(r"tensorboard --logdir runs/demo$", done.stdout, re.MULTILINE)
    assert "raised at step" in done.stderr
    assert "Traceback" not in done.stderr


def _check_runs(starving: RunHistory, fed: RunHistory) -> None:
    assert starving.summary
    assert fed.summary
    assert starving.info
    assert fed.info
    assert starving.summary.steps == fed.summary.steps >= 60
    assert starving.summary.samples == fed.summary.samples
    accuracy = [run.series["perf_observed/val/accuracy"].value for run in (starving, fed)]
    assert np.array_equal(accuracy[0], accuracy[1]), "the same work gives the same network"
    assert accuracy[0][-1] > 0.7
    assert starving.info.loader["num_workers"] == 0
    assert fed.info.loader["num_workers"] in (1, 2)
    before, after = (run.summary.metrics["perf/data_pct"].p50 for run in (starving, fed) if run.summary)
    assert before > 20
    assert after < before / 2
    for run in (starving.summary, fed.summary):
        assert run.phases["eval"] > 0


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="sends Ctrl-C to a process group")
def test_ctrl_c_ends_the_demo_quietly(tmp_path: Path) -> None:
    """Workers and all are gone, the status is 130, nothing is said, the run is marked as killed."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", SMALL, "demo", "--steps", "4000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TRACKPERF_INTERVAL_S": "0.1", "TRACKPERF_SINK": "tensorboard"},
    )
    assert process.stdout
    assert any(line.startswith("starving") for line in process.stdout)
    run = tmp_path / "runs" / "demo" / "starving"
    pause = threading.Event()
    while not list(run.glob("*tfevents*")):
        assert process.poll() is None
        pause.wait(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == ""
    history = read_run(str(run))
    assert history.status is not None
    assert history.status.value == "killed"
