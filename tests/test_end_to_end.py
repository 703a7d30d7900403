"""From the training loop into TensorBoard's files and back, through the public interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from trackperf_tensorboard import TensorBoardSink

import trackperf
from trackperf.registry import read_run
from trackperf.testing import MemorySink

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Bench, Maker


def train(run: Bench, batches: int, size: int, seconds: float, first: int = 0) -> dict[str, Any]:
    """Train, save the state at step 100 as a checkpoint would, and return it."""
    state: dict[str, Any] = {}
    for place, _ in enumerate(run.perf.steps(run.loader([size] * batches), samples=size), first):
        run.clock.advance(seconds)
        if place + 1 == 100:
            state = run.perf.state_dict()
    return state


class TestResume:
    """A run that was taken over from an older checkpoint."""

    def test_overlap(self, bench: Maker, tmp_path: Path) -> None:
        """
        150 steps, then 100 more from the checkpoint at step 100: 200 steps stand, each once, the later ones;
        the 50 that were done twice are told.
        """
        first = bench(sinks=[TensorBoardSink()], name="x", interval_s=0.05)
        state = train(first, 150, 4, 0.1)
        first.perf.finish()
        second = bench(first.clock, sinks=[TensorBoardSink()], name="x", interval_s=0.05)
        second.perf.load_state_dict(state)
        train(second, 100, 4, 0.2, first=100)
        second.perf.finish()
        history = read_run(f"tensorboard:{tmp_path / 'runs' / 'x'}")
        step_ms = history.series["perf/step_ms"]
        assert step_ms.step.tolist() == list(range(1, 201))
        assert step_ms.value[119] == pytest.approx(200)
        assert step_ms.value[99] == pytest.approx(100)
        train_s = history.series["perf/train_s"].value
        assert train_s[-1] == pytest.approx(10 + 20)
        assert (train_s[1:] > train_s[:-1]).all()
        assert history.redone_steps == 50
        assert history.redone_s == pytest.approx(5.0, rel=1e-4)
        assert history.problems == ()

    def test_listing_tells_it(self, bench: Maker, tmp_path: Path) -> None:
        """The listing's training time is that of the 200 steps, and the time lost is beside it."""
        self.test_overlap(bench, tmp_path)
        (row,) = trackperf.runs(str(tmp_path / "runs"))
        assert row.steps == 200
        assert row.train_s == pytest.approx(30)
        assert row.redone_s == pytest.approx(5, rel=1e-4)


class TestCompare:
    """Two runs, read back from their files."""

    def test_throughput_up_and_goal_later(self, bench: Maker, tmp_path: Path) -> None:
        """
        100 samples/s to the goal in 1 000 s, and 180 samples/s to it in 1 200 s: the second is worse, and
        the sentence says that throughput rose and the goal came later.
        """
        for name, size, rate, steps in (("a", 10, 100, 10_000), ("b", 18, 180, 12_000)):
            run = bench(sinks=[TensorBoardSink()], name=name, goal="acc >= 0.9", interval_s=20.0)
            for place, _ in enumerate(run.perf.steps(run.loader([size] * steps), samples=size)):
                run.clock.advance(size / rate)
                if place + 1 == steps:
                    run.perf.observe("acc", 0.95)
            run.perf.finish()
        result = trackperf.compare(str(tmp_path / "runs" / "a"), str(tmp_path / "runs" / "b"))
        assert result.verdict == "worse"
        assert "80 %" in result.sentence
        assert "20 %" in result.sentence

    def test_a_starving_loader_against_a_fed_one(self, bench: Maker, tmp_path: Path) -> None:
        """With 60 % of the step spent waiting against 3 %: the second is better, and the loader is why."""
        for name, wait in (("starved", 0.15), ("fed", 0.003)):
            run = bench(sinks=[TensorBoardSink()], name=name)
            for _ in run.perf.steps(run.loader([8] * 200, wait), samples=8):
                run.clock.advance(0.1)
            run.perf.finish()
        result = trackperf.compare(str(tmp_path / "runs" / "starved"), str(tmp_path / "runs" / "fed"))
        assert result.verdict == "better"
        assert "data" in result.sentence
        starved = read_run(str(tmp_path / "runs" / "starved"))
        assert [(alert.rule, alert.state) for alert in starved.alerts] == [("loader_latency", "raised")]
        assert starved.series["perf_alert/loader_latency"].value[-1] == 1
        assert read_run(str(tmp_path / "runs" / "fed")).series["perf_alert/active"].value.max() == 0


class TestRealLoader:
    """A real DataLoader in a real training."""

    def test_two_epochs_with_workers(self, tmp_path: Path) -> None:
        """Two epochs with two workers: a first batch each, every batch a step, no alert for start-up."""
        sink = MemorySink()
        loader = DataLoader(TensorDataset(torch.zeros(103, 3)), batch_size=16, num_workers=2)
        perf = trackperf.init(sink=[sink, "tensorboard"], dir=tmp_path, name="x", warmup_steps=0)
        wrapped = perf.steps(loader)
        for _ in range(2):
            for (batch,) in wrapped:
                torch.mm(batch, batch.T)
        perf.finish()
        assert sink.summary is not None
        assert (sink.summary.steps, sink.summary.samples) == (14, 206)
        assert sink.summary.alerts == ()
        assert sink.info is not None
        assert sink.info.loader["num_workers"] == 2
        assert sink.info.loader["batch_size"] == 16
        history = read_run(str(tmp_path / "x"))
        assert history.series["perf_data/first_batch_ms"].value[-1] > 1
        assert history.series["perf_self/us_per_step"].value[-1] > 0
        assert history.summary == sink.summary
        assert history.info is not None
        assert set(history.info.absent) >= {"perf/gpu_util_pct", "perf/mem_bw_pct"}
