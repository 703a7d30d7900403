"""What the user may hand to a run once it has begun: nothing of it raises."""

from __future__ import annotations

import contextlib
import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from trackperf.registry import read_run
from trackperf.sinks.jsonl import JsonlSink

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Bench, Maker


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings so far."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def train(run: Bench, batches: list[Any], **how: Any) -> None:
    """Train over batches, 0.1 s each."""
    for _ in run.perf.steps(run.loader(batches), **how):
        run.clock.advance(0.1)


class TestCounting:
    """Counts that cannot be had cost one warning and a rate, never the training."""

    @pytest.mark.parametrize(
        ("samples", "said"),
        [
            (lambda batch: batch["nothing"], "samples"),
            (lambda _batch: -3, "-3"),
            (lambda _batch: "many", "many"),
            (lambda _batch: True, "True"),
            (-1, "-1"),
            ("x", "x"),
            (True, "True"),
        ],
    )
    def test_samples(self, bench: Maker, caplog: pytest.LogCaptureFixture, samples: Any, said: str) -> None:
        """A `samples=` that fails: every batch is handed out, one warning, steps but no samples/s."""
        run = bench(alerts=False)
        train(run, [{"x": torch.zeros(2)}] * 30, samples=samples)
        summary = run.total()
        assert (summary.steps, summary.samples) == (30, None)
        assert run.values("perf/samples_per_s") == []
        assert len(run.values("perf/step_ms")) == 2
        assert len(warnings(caplog)) == 1
        assert said in warnings(caplog)[0]

    def test_an_unknown_batch(self, bench: Maker, caplog: pytest.LogCaptureFixture) -> None:
        """A batch of no known size is one warning for the run, over many passes, and no rate: never 1."""
        run = bench(alerts=False)
        for _ in range(3):
            train(run, ["text"] * 5)
        assert run.total().samples is None
        assert run.values("perf/samples_per_s") == []
        assert len(warnings(caplog)) == 1

    def test_tokens_of_a_mask(self, bench: Maker) -> None:
        """A mask of 4 x 10 with 24 ones in 0.5 s is 48 tokens/s; all of it is 80, if asked for."""
        mask = torch.zeros(4, 10, dtype=torch.long)
        for row, length in enumerate((10, 7, 5, 2)):
            mask[row, :length] = 1
        batch = {"input_ids": torch.zeros(4, 10, dtype=torch.long), "attention_mask": mask}
        cases: list[tuple[Any, float, str]] = [
            ("attention_mask", 48, "mask"),
            ("padded", 80, "padding included"),
            (7, 14, "7"),
        ]
        for tokens, rate, told in cases:
            run = bench()
            for _ in run.perf.steps(run.loader([batch] * 3), tokens=tokens):
                run.clock.advance(0.5)
            assert run.total().metrics["perf/tokens_per_s"].mean == pytest.approx(rate)
            assert run.sink.info is not None
            assert told in str(run.sink.info.environment["tokens_are"])

    @pytest.mark.parametrize("accumulate", [0, -2, 1.5, True, "4"])
    def test_accumulate(self, bench: Maker, caplog: pytest.LogCaptureFixture, accumulate: Any) -> None:
        """An `accumulate=` that is no count is one warning, and each batch is a step."""
        run = bench(alerts=False)
        train(run, [1] * 6, samples=1, accumulate=accumulate)
        assert run.total().steps == 6
        assert len(warnings(caplog)) == 1

    @pytest.mark.parametrize("samples", [-1, 1.5, "4", True])
    def test_step(self, bench: Maker, caplog: pytest.LogCaptureFixture, samples: Any) -> None:
        """`step()` with a bad count is a step without samples, and one warning."""
        run = bench(alerts=False)
        for _ in range(5):
            with run.perf.step(samples=samples):
                run.clock.advance(0.1)
        summary = run.total()
        assert (summary.steps, summary.samples) == (5, None)
        assert len(warnings(caplog)) == 1

    def test_a_body_that_raises_is_no_step(self, bench: Maker) -> None:
        """An exception in `step()` passes through, and the body does not count."""
        run = bench()
        for place in range(4):
            with contextlib.suppress(RuntimeError), run.perf.step(samples=1):
                run.clock.advance(0.1)
                if place == 2:
                    raise RuntimeError("out of memory")
        assert run.total().steps == 3


class TestObserve:
    """Values of the user's own."""

    def test_what_can_be_read_is_written(self, bench: Maker, caplog: pytest.LogCaptureFixture) -> None:
        """Tensors and NumPy scalars are numbers; NaN, infinity, None and texts are left out and counted."""
        run = bench(alerts=False)
        given = [math.nan, math.inf, None, "x", torch.tensor(1.5), np.float32(2.5), 3]
        for place, _ in enumerate(run.perf.steps(run.loader([1] * len(given)), samples=1)):
            run.clock.advance(0.1)
            run.perf.observe("loss", given[place])  # type: ignore[arg-type]
        summary = run.total()
        assert run.sink.series("perf_observed/loss") == [(5, 1.5), (6, 2.5), (7, 3.0)]
        assert summary.dropped["values"] == 4
        assert len(warnings(caplog)) == 1

    def test_a_nan_among_numbers(self, bench: Maker, tmp_path: Path) -> None:
        """Of 1, NaN and 3 the store holds two values of mean 2, no bare NaN, and no alert comes of it."""
        run = bench(sinks=[JsonlSink()], name="x")
        for value, _ in zip(
            (1.0, math.nan, 3.0), run.perf.steps(run.loader([1] * 3), samples=1), strict=True
        ):
            run.clock.advance(0.1)
            run.perf.observe("loss", value)
        assert run.total().alerts == ()
        stored = read_run(f"jsonl:{tmp_path / 'runs' / 'x'}").series["perf_observed/loss"].value
        assert (stored.mean(), stored.size) == (2.0, 2)
        text = (tmp_path / "runs" / "x" / "trackperf.jsonl").read_text()
        assert "NaN" not in text
        assert "Infinity" not in text

    def test_an_accelerator_is_not_asked(self, bench: Maker, caplog: pytest.LogCaptureFixture) -> None:
        """A value on a device is refused with a reason: reading it would wait for the device."""
        run = bench(alerts=False)
        train(run, [1], samples=1)
        run.perf.observe("loss", torch.zeros((), device="meta"))  # type: ignore[arg-type]
        run.perf.finish()
        assert run.values("perf_observed/loss") == []
        assert "on the host" in warnings(caplog)[0]

    def test_names(self, bench: Maker, tmp_path: Path) -> None:
        """Any name is taken: safe, the same every time, never two as one, and the name itself is kept."""
        names = [
            "timing(s)/gen",
            "val@100",
            "a,b",
            "a//b",
            "/a",
            "x" * 251,
            "a@b",
            "a_b",
            "é",
            "..",
            "a/../b",
        ]
        run = bench(sinks=[JsonlSink()], name="x")
        for name, _ in zip(names, run.perf.steps(run.loader([1] * 20), samples=1), strict=False):
            run.clock.advance(0.1)
            run.perf.observe(name, 1.0)
        run.perf.finish()
        keys = {key for point in run.sink.points for key in point.values if key.startswith("perf_observed/")}
        assert len(keys) == len(names)
        allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./ ")
        for key in keys:
            assert set(key) <= allowed
            assert all(part.strip(" .") for part in key.split("/"))
            assert len(key) <= 250
        assert "perf_observed/a_b" in keys
        assert run.sink.summary is not None
        known = dict(run.sink.summary.names)
        assert sorted(known.get(key, key.removeprefix("perf_observed/")) for key in keys) == sorted(names)
        history = read_run(f"jsonl:{tmp_path / 'runs' / 'x'}")
        assert keys <= set(history.series)

    def test_built_in_names(self, bench: Maker) -> None:
        """Keys of trackperf's own hold only lower case, digits, `_` and `/`, and stand in a section."""
        run = bench(warmup_steps=2, total_steps=40)
        train(run, [1] * 40, samples=1, tokens=3)
        run.perf.finish()
        for point in run.sink.points:
            for key in point.values:
                assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789_/")
                assert key.count("/") == 1
                assert key.startswith("perf")

    def test_values_after_the_last_step(self, bench: Maker) -> None:
        """A value observed after the loop belongs to the last step."""
        run = bench(goal="acc >= 0.5")
        train(run, [1] * 4, samples=1)
        run.clock.advance(30.0)
        run.perf.observe("acc", 0.75)
        summary = run.total()
        assert run.sink.series("perf_observed/acc") == [(4, 0.75)]
        assert summary.to_goal_steps == 4
        assert summary.to_goal_s == pytest.approx(0.4)


class TestPhases:
    """Names of phases."""

    def test_names(self, bench: Maker, caplog: pytest.LogCaptureFixture) -> None:
        """Any name makes a key; names of trackperf's own are refused with a warning; `train` is training."""
        run = bench(alerts=False)
        for _ in run.perf.steps(run.loader([1] * 4), samples=1):
            with run.perf.phase("train"):
                run.clock.advance(0.1)
            with run.perf.phase("Log (slow)"):
                run.clock.advance(0.2)
            with run.perf.phase("warmup"):
                run.clock.advance(0.3)
        summary = run.total()
        assert summary.train_s == pytest.approx(1.6)
        assert sum(
            value for name, value in summary.phases.items() if name.startswith("Log")
        ) == pytest.approx(0.8)
        assert len(warnings(caplog)) == 1


class TestState:
    """States of other runs, and things that are none."""

    @pytest.mark.parametrize("state", [None, 3, [], {"steps": 3}, {"version": 99}])
    def test_not_a_state(self, bench: Maker, caplog: pytest.LogCaptureFixture, state: Any) -> None:
        """What is no state of ours is left alone, with one warning; the run counts from 0."""
        run = bench(alerts=False)
        run.perf.load_state_dict(state)
        train(run, [1] * 3, samples=1)
        assert run.total().steps == 3
        assert len(warnings(caplog)) == 1

    def test_too_late(self, bench: Maker, caplog: pytest.LogCaptureFixture) -> None:
        """A state that comes after the first step is left alone, with one warning."""
        run = bench(alerts=False)
        train(run, [1] * 3, samples=1)
        state = run.perf.state_dict()
        run.perf.load_state_dict(state)
        train(run, [1] * 3, samples=1)
        assert run.total().steps == 6
        assert len(warnings(caplog)) == 1

    def test_the_run_is_taken_over(self, bench: Maker, tmp_path: Path) -> None:
        """A resumed run goes on in its own folder, under its name and identity; no empty folder is left."""
        first = bench(name="night")
        train(first, [1] * 3, samples=1)
        state = first.perf.state_dict()
        first.perf.finish()
        (tmp_path / "runs" / "night" / "file").touch()
        second = bench(name="night")
        assert second.perf.name == "night-2"
        second.perf.load_state_dict(state)
        train(second, [1] * 3, samples=1)
        second.perf.finish()
        assert first.sink.info is not None
        assert second.sink.info is not None
        assert second.sink.info.name == "night"
        assert second.sink.info.run_id == first.sink.info.run_id
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["night"]

    def test_another_name_is_another_run(self, bench: Maker) -> None:
        """A state loaded into a run of another name: it goes on counting as a run of its own."""
        first = bench(name="night")
        train(first, [1] * 3, samples=1)
        second = bench(name="branch")
        second.perf.load_state_dict(first.perf.state_dict())
        train(second, [1] * 3, samples=1)
        assert second.total().steps == 6
        assert second.sink.info is not None
        assert second.sink.info.name == "branch"


class TestEta:
    """Time left."""

    def test_eta(self, bench: Maker) -> None:
        """With 100 steps in all, at 40 steps of 0.1 s and an evaluation a tenth as long, 6.6 s are left."""
        run = bench(total_steps=100, interval_s=4.0)
        for place, _ in enumerate(run.perf.steps(run.loader([1] * 100), samples=1)):
            run.clock.advance(0.1)
            if place % 10 == 9:
                with run.perf.phase("eval"):
                    run.clock.advance(0.1)
        run.perf.finish()
        last = run.sink.series("perf_time/eta_s")
        assert last[-1] == (100, 0.0)
        for step, left in last[1:]:
            assert left == pytest.approx((100 - step) * 0.11, abs=0.12)
