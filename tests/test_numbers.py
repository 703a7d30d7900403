"""The numbers that must come out: inputs and right values of the contract and of reported faults."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness import Bench, Maker


def train(run: Bench, sizes: list[int], step_s: float | list[float], wait_s: float = 0.0, **how: Any) -> None:
    """Train over batches of the given sizes."""
    times = step_s if isinstance(step_s, list) else [step_s] * len(sizes)
    loader = run.loader(sizes, wait_s)
    for place, _ in enumerate(run.perf.steps(loader, samples=lambda size: size, **how)):
        run.clock.advance(times[place])


class TestThroughput:
    """Samples per second is samples over the time of their steps."""

    def test_a_constant_batch(self, bench: Maker) -> None:
        """256 samples in 0.85 s are 301.18 samples/s."""
        run = bench()
        train(run, [256] * 20, 0.85)
        assert run.total().metrics["perf/samples_per_s"].mean == pytest.approx(301.18, abs=0.005)
        assert run.values("perf/samples_per_s") == pytest.approx([301.176] * 7, abs=0.001)

    def test_a_variable_batch(self, bench: Maker) -> None:
        """8, 8, 8 and 4 samples in 0.1, 0.1, 0.1 and 0.3 s are 46.67 samples/s: no mean of rates."""
        run = bench()
        train(run, [8, 8, 8, 4], [0.1, 0.1, 0.1, 0.3])
        run.perf.finish()
        assert run.values("perf/samples_per_s") == pytest.approx([28 / 0.6])
        assert run.values("perf_step/samples") == [7.0]

    def test_a_shrinking_batch(self, bench: Maker) -> None:
        """Batches of 1, 2 and 1 count 4 samples, whatever size came last."""
        run = bench()
        train(run, [1, 2, 1], 0.1)
        assert run.total().samples == 4

    def test_a_partial_last_batch(self, bench: Maker) -> None:
        """103 items in batches of 16, 0.1 s each, are 147.14 samples/s, not 160."""
        run = bench()
        train(run, [16] * 6 + [7], 0.1)
        assert run.total().samples == 103
        assert run.last("perf/samples_per_s") == pytest.approx(147.14, abs=0.005)

    @pytest.mark.parametrize(("micro", "size", "seconds"), [(4, 8, 0.05), (1, 32, 0.2)])
    def test_accumulation(self, bench: Maker, micro: int, size: int, seconds: float) -> None:
        """Four micro-batches of 8 in 0.2 s and one batch of 32 in 0.2 s are both 160 samples/s."""
        run = bench()
        train(run, [size] * 50 * micro, seconds, accumulate=micro)
        summary = run.total()
        assert summary.steps == 50
        assert summary.metrics["perf/samples_per_s"].mean == pytest.approx(160)
        assert summary.metrics["perf/step_ms"].mean == pytest.approx(200)

    def test_a_partial_accumulation(self, bench: Maker) -> None:
        """Ten batches at four a step make three steps: the end of a pass ends its last step."""
        run = bench()
        train(run, [8] * 10, 0.05, accumulate=4)
        summary = run.total()
        assert (summary.steps, summary.samples) == (3, 80)

    def test_resume_does_not_count_old_tokens_into_the_rate(self, bench: Maker) -> None:
        """After 1 000 000 tokens, 10 steps of 4 096 in 2 s are 20 480 tokens/s, and 1 040 960 in all."""
        first = bench()
        for _ in first.perf.steps(first.loader([1]), tokens=1_000_000):
            first.clock.advance(50.0)
        state = first.perf.state_dict()
        second = bench()
        second.perf.load_state_dict(state)
        for _ in second.perf.steps(second.loader([1] * 10), tokens=4096):
            second.clock.advance(0.2)
        summary = second.total()
        assert summary.tokens == 1_040_960
        assert summary.metrics["perf/tokens_per_s"].mean == pytest.approx(20_480)

    def test_warm_up_is_outside_rates(self, bench: Maker) -> None:
        """A first step of 30 s and 99 of 0.1 s: 640 samples/s, 39.9 s in all, and the 30 s stay visible."""
        run = bench(warmup_steps=1)
        train(run, [64] * 100, [30.0] + [0.1] * 99)
        summary = run.total()
        assert summary.metrics["perf/samples_per_s"].mean == pytest.approx(640)
        assert summary.train_s == pytest.approx(39.9)
        assert run.sink.series("perf/step_ms")[0] == pytest.approx((1, 30_000))
        assert run.sink.series("perf/samples_per_s")[0][0] > 1

    def test_a_frozen_clock(self, bench: Maker) -> None:
        """A step that took no time has no rate; with the next, 8 samples in 0.1 s are 80/s."""
        run = bench()
        loader = run.loader([4, 4])
        for place, _ in enumerate(run.perf.steps(loader, samples=4)):
            if place:
                run.clock.advance(0.1)
        run.perf.finish()
        assert run.values("perf/samples_per_s") == pytest.approx([80.0])

    def test_only_frozen_steps(self, bench: Maker) -> None:
        """Steps that took no time at all write no rate, no infinity and no zero."""
        run = bench()
        train(run, [4, 4], 0.0)
        assert run.total().steps == 2
        assert run.values("perf/samples_per_s") == []
        assert run.values("perf/step_ms") == []

    def test_an_empty_loader(self, bench: Maker) -> None:
        """A pass over nothing is no step, has no rate, and raises no alert."""
        run = bench()
        train(run, [], 0.1)
        summary = run.total()
        assert (summary.steps, summary.samples, summary.alerts, run.sink.points) == (0, None, (), [])

    def test_several_ranks_never_share_a_name_with_one(
        self, bench: Maker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a job of 8 ranks this rank's 1 000 tokens/s go by a name of their own, on every point."""
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "8")
        run = bench()
        for _ in run.perf.steps(run.loader([1] * 10), tokens=1000):
            run.clock.advance(1.0)
        run.perf.finish()
        assert run.values("perf_rank/tokens_per_s") == pytest.approx([1000.0] * 5)
        assert run.values("perf/tokens_per_s") == []
        assert run.sink.info is not None
        assert "all ranks" in run.sink.info.absent["perf/samples_per_s"]


class TestData:
    """Data-loading latency is the wait for batches as a share of the step."""

    @pytest.mark.parametrize(
        ("wait_s", "compute_s", "step_ms", "data_pct"), [(0.1, 0.2, 300, 33.3), (0.5, 0.2, 700, 71.4)]
    )
    def test_share(
        self,
        bench: Maker,
        wait_s: float,
        compute_s: float,
        step_ms: float,
        data_pct: float,
    ) -> None:
        """A wait of 0.1 s and compute of 0.2 s are a step of 300 ms and 33.3 %; 0.5 s are 71.4 %."""
        run = bench()
        train(run, [1] * 30, compute_s, wait_s)
        metrics = run.total().metrics
        assert metrics["perf/step_ms"].mean == pytest.approx(step_ms)
        assert metrics["perf/data_pct"].mean == pytest.approx(data_pct, abs=0.05)
        assert run.last("perf/data_wait_ms") == pytest.approx(wait_s * 1000)

    def test_first_batches_are_apart(self, bench: Maker) -> None:
        """An epoch of 90 ms + 99 x 1 ms waits and 50 ms of compute: 100 waits, 3.6 % in all, no alert."""
        run = bench()
        loader = run.loader([1] * 100, [0.09] + [0.001] * 99)
        for _ in run.perf.steps(loader, samples=1):
            run.clock.advance(0.05)
        summary = run.total()
        assert run.values("perf_data/first_batch_ms") == pytest.approx([90.0])
        assert max(run.values("perf_data/wait_max_ms")) == pytest.approx(90)
        assert max(run.values("perf_data/wait_p95_ms")) == pytest.approx(1)
        assert summary.metrics["perf/data_pct"].mean == pytest.approx(100 / 51)
        assert run.values("perf_data/startup_pct") == pytest.approx([100 * 90 / 5189], abs=0.01)
        assert summary.alerts == ()
        assert summary.train_s == pytest.approx(5.189)

    def test_the_end_of_an_epoch_is_no_wait_for_a_batch(self, bench: Maker) -> None:
        """The time a loader takes to say that it is done counts as no batch and as no step."""
        run = bench()

        def loader() -> Any:
            for _ in range(4):
                run.clock.advance(0.1)
                yield 1
            run.clock.advance(3.0)

        for _ in range(2):
            for _ in run.perf.steps(loader(), samples=1):
                run.clock.advance(0.1)
        summary = run.total()
        assert summary.steps == 8
        assert summary.phases["other"] == pytest.approx(6.0)
        assert max(run.values("perf_data/wait_max_ms")) == pytest.approx(100)

    def test_loops_without_marked_fetches_have_no_share(self, bench: Maker) -> None:
        """A wait that nobody measured is absent, not zero."""
        run = bench()
        for _ in range(20):
            with run.perf.step(samples=2):
                run.clock.advance(0.2)
        assert run.total().metrics["perf/samples_per_s"].mean == pytest.approx(10)
        assert run.values("perf/data_pct") == []
        assert run.values("perf/data_wait_ms") == []

    def test_a_fetch_before_a_step(self, bench: Maker) -> None:
        """A fetch marked before a step is a wait of that step, and its time is part of it."""
        run = bench()
        for _ in range(20):
            with run.perf.data():
                run.clock.advance(0.1)
            with run.perf.step(samples=2):
                run.clock.advance(0.3)
        metrics = run.total().metrics
        assert metrics["perf/data_pct"].mean == pytest.approx(25)
        assert metrics["perf/samples_per_s"].mean == pytest.approx(5)

    def test_a_fetch_in_the_middle_of_a_step(self, bench: Maker) -> None:
        """The next batch fetched in the middle of the step is a wait of the step it lies in."""
        run = bench()
        for _ in range(20):
            with run.perf.step(samples=2):
                run.clock.advance(0.2)
                with run.perf.data():
                    run.clock.advance(0.1)
                run.clock.advance(0.1)
        metrics = run.total().metrics
        assert metrics["perf/data_pct"].mean == pytest.approx(25)
        assert metrics["perf/step_ms"].mean == pytest.approx(400)


class TestPhases:
    """Every second belongs to exactly one phase."""

    def test_an_evaluation_is_no_training(self, bench: Maker) -> None:
        """20 steps of 10 ms with 5 s of evaluation in the middle: same throughput, 5 s of evaluation."""
        run = bench()
        for place, _ in enumerate(run.perf.steps(run.loader([1] * 20), samples=1)):
            run.clock.advance(0.01)
            if place == 9:
                with run.perf.phase("eval"):
                    run.clock.advance(5.0)
        summary = run.total()
        assert summary.metrics["perf/samples_per_s"].mean == pytest.approx(100)
        assert summary.phases["eval"] == pytest.approx(5)
        assert run.last("perf_time/eval_s") == pytest.approx(5)

    @pytest.mark.parametrize(("eval_s", "checkpoint_s"), [(10, 0), (20, 0), (10, 5)])
    def test_training_time_does_not_depend_on_evaluation(
        self, bench: Maker, eval_s: float, checkpoint_s: float
    ) -> None:
        """100 steps of 0.1 s are 10 s and 320 samples/s, whatever evaluation and checkpoints take."""
        run = bench()
        for place, _ in enumerate(run.perf.steps(run.loader([32] * 100), samples=32)):
            run.clock.advance(0.1)
            if place == 49:
                with run.perf.phase("eval"):
                    run.clock.advance(eval_s)
                with run.perf.phase("checkpoint"):
                    run.clock.advance(checkpoint_s)
        summary = run.total()
        assert summary.train_s == pytest.approx(10)
        assert summary.metrics["perf/samples_per_s"].mean == pytest.approx(320)
        assert sum(summary.phases.values()) == pytest.approx(10 + eval_s + checkpoint_s)
        assert summary.phases.get("checkpoint", 0) == pytest.approx(checkpoint_s)

    def test_phases_add_up(self, bench: Maker) -> None:
        """Start-up, warm-up, training, nested phases and the rest are the wall time, at every point."""
        run = bench(warmup_steps=3)
        run.clock.advance(7.0)
        for _ in range(3):
            for place, _ in enumerate(run.perf.steps(run.loader([1] * 40, 0.02), samples=1)):
                run.clock.advance(0.1)
                if place % 10 == 9:
                    with run.perf.phase("eval"):
                        run.clock.advance(1.0)
                        with run.perf.phase("checkpoint"):
                            run.clock.advance(0.5)
                        run.clock.advance(1.0)
            run.clock.advance(0.25)
        summary = run.total()
        assert summary.phases == pytest.approx(
            {"startup": 7, "warmup": 0.36, "train": 14.04, "eval": 24, "checkpoint": 6, "other": 0.75}
        )
        for point in run.sink.points:
            phases = {key: value for key, value in point.values.items() if key.startswith("perf_time/")}
            wall = phases.pop("perf_time/wall_s")
            parts = sum(value for key, value in phases.items() if key.endswith("_s"))
            assert parts == pytest.approx(wall, rel=1e-9)

    def test_evaluation_over_the_training_loader(self, bench: Maker) -> None:
        """A pass over the same loader inside a phase makes no steps and no waits."""
        run = bench()
        loader = run.perf.steps(list(range(10)), samples=1)
        for _ in range(2):
            for _ in loader:
                run.clock.advance(0.1)
            with run.perf.phase("eval"):
                for _ in loader:
                    run.clock.advance(0.3)
        summary = run.total()
        assert summary.steps == 20
        assert summary.phases["eval"] == pytest.approx(6)
        assert summary.metrics["perf/step_ms"].mean == pytest.approx(100)


class TestClock:
    """Durations come from a clock that does not jump."""

    def test_the_wall_clock_jumps(self, bench: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Jumps of the wall clock by hours change no duration: 10 steps of 0.1 s stay that."""
        jumps = {6: -3600.0, 8: 7200.0}
        now = [1_700_000_000.0]
        monkeypatch.setattr(time, "time", lambda: now[0])
        run = bench(interval_s=0.01)
        for place, _ in enumerate(run.perf.steps(run.loader([1] * 10), samples=1)):
            run.clock.advance(0.1)
            now[0] += 0.1 + jumps.get(place, 0.0)
        summary = run.total()
        assert run.values("perf/step_ms") == pytest.approx([100.0] * 10)
        assert summary.train_s == pytest.approx(1.0)
        assert [step for step, _ in run.sink.series("perf/step_ms")] == list(range(1, 11))


class TestResume:
    """A run goes on where its state says."""

    def test_step_and_time_go_on(self, bench: Maker) -> None:
        """Killed at step 500 and resumed: steps and training time go on, with no jump and no overlap."""
        first = bench()
        for place, _ in enumerate(first.perf.steps(first.loader([4] * 1000), samples=4)):
            first.clock.advance(0.1)
            if place == 499:
                state = first.perf.state_dict()
                break
        assert state["steps"] == 500
        second = bench()
        second.clock.advance(3.0)
        second.perf.load_state_dict(state)
        train(second, [4] * 100, 0.1)
        summary = second.total()
        assert (summary.steps, summary.samples) == (600, 2400)
        assert summary.train_s == pytest.approx(60)
        steps = [step for step, _ in second.sink.series("perf/train_s")]
        assert steps[0] > 500
        assert steps[-1] == 600
        assert second.last("perf/train_s") == pytest.approx(60)
        assert second.sink.info is not None
        assert second.sink.info.resume_step == 500


class TestGoal:
    """Time to the goal is training time."""

    @pytest.mark.parametrize(
        ("size", "rate", "steps", "seconds"), [(10, 100, 10_000, 1000), (18, 180, 12_000, 1200)]
    )
    def test_time_to_goal(self, bench: Maker, size: int, rate: int, steps: int, seconds: int) -> None:
        """10 000 steps of 10 at 100 samples/s are 1 000 s to the goal; 12 000 of 18 at 180 are 1 200 s."""
        run = bench(goal="val/accuracy >= 0.9")
        for place, _ in enumerate(run.perf.steps(run.loader([size] * (steps + 50)), samples=size)):
            run.clock.advance(size / rate)
            if place + 1 in (steps // 2, steps):
                with run.perf.phase("eval"):
                    run.clock.advance(60.0)
                    run.perf.observe("val/accuracy", 0.5 if place + 1 < steps else 0.95)
        summary = run.total()
        assert summary.to_goal_steps == steps
        assert summary.to_goal_s == pytest.approx(seconds)
        assert run.last("perf_time/to_goal_s") == pytest.approx(seconds)
        assert run.sink.series("perf_observed/val/accuracy") == [(steps // 2, 0.5), (steps, 0.95)]
