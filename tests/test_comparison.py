"""Comparisons: the verdict, its reason, what differs, and what must not be compared."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trackperf import registry
from trackperf.comparison import Comparison, ComparisonRow, compare
from trackperf.history import RunHistory, Series
from trackperf.metrics import HEADLINE
from trackperf.record import RunInfo, RunSummary, Stat, Status

if TYPE_CHECKING:
    from collections.abc import Mapping


def stats(values: Mapping[str, float], n: int = 100) -> dict[str, Stat]:
    """Return the statistics of metrics that hardly vary."""
    return {key: Stat(mean=value, p50=value, p95=value * 1.1, n=n) for key, value in values.items()}


def run(
    name: str,
    metrics: Mapping[str, float] | None = None,
    *,
    steps: int = 1000,
    size: float | None = 32,
    train_s: float = 100.0,
    n: int = 100,
    info: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    **history: Any,
) -> RunHistory:
    """Return a finished run with a summary."""
    written = RunSummary(
        steps=steps,
        samples=None if size is None else round(steps * size),
        metrics=stats(metrics or {}, n),
        phases={"startup": 1.0, "warmup": 1.0, "train": train_s - 1.0},
        **(summary or {}),
    )
    about = RunInfo(run_id="0" * 32, name=name, dir="runs", started_at=1e9, **(info or {}))
    kept: dict[str, Any] = {"summary": written, "info": about, "status": Status.FINISHED, "series": {}}
    return RunHistory(**{"name": name, "source": f"runs/{name}", **kept, **history})


def speed(
    samples_per_s: float, size: float = 32, data_pct: float | None = None, **more: float
) -> dict[str, float]:
    """Return the headline metrics of a speed."""
    step_ms = size / samples_per_s * 1e3
    values = {"perf/samples_per_s": samples_per_s, "perf/step_ms": step_ms, **more}
    if data_pct is not None:
        values |= {"perf/data_pct": data_pct, "perf/data_wait_ms": step_ms * data_pct / 100}
    return values


def points(values: list[float]) -> Series:
    """Return a series of these values."""
    count = len(values)
    return Series(
        step=np.arange(1, count + 1, dtype=np.int64) * 10,
        wall_time=1e9 + np.arange(count, dtype=np.float64),
        value=np.asarray(values, dtype=np.float64),
    )


def row(comparison: Comparison, key: str) -> ComparisonRow:
    """Return the row of a metric."""
    return next(one for one in comparison.rows if one.key == key)


def goal_pair(**info: Any) -> tuple[RunHistory, RunHistory]:
    """Return the pair whose second run has more throughput and takes longer to the goal."""
    a = run(
        "small", speed(100, 10), steps=10_000, size=10, train_s=1000.0, info=info,
        summary={"to_goal_s": 1000.0, "to_goal_steps": 10_000},
    )  # fmt: skip
    b = run(
        "large", speed(180, 18), steps=12_000, size=18, train_s=1200.0, info=info,
        summary={"to_goal_s": 1200.0, "to_goal_steps": 12_000},
    )  # fmt: skip
    return a, b


def test_more_throughput_but_longer_to_the_goal_is_worse() -> None:
    """1 000 s against 1 200 s with +80 % throughput: the second run is worse, and the sentence says why."""
    a, b = goal_pair()
    result = compare(a, b)
    assert result.verdict == "worse"
    assert result.sentence == (
        "large is worse than small: throughput rose 80 % but reaching the goal took 20 % longer "
        "(1 200 s against 1 000 s); 12 000 steps of 18 samples = 216 000 samples against 100 000."
    )
    assert [one.key for one in result.rows[:3]] == [
        "perf_time/to_goal_s",
        "perf_time/to_goal_steps",
        "perf/train_s",
    ]
    assert row(result, "perf_time/to_goal_s").change_pct == pytest.approx(20.0)
    assert row(result, "perf/samples_per_s").judgement == "better"
    assert row(result, "perf/train_s").judgement == "not comparable"
    assert row(result, "perf/step_ms").judgement == "not comparable"
    assert "samples per step: 10 against 18" in result.differences
    back = compare(b, a)
    assert back.verdict == "better"
    assert "throughput fell 44 % but reaching the goal took 17 % less time" in back.sentence


def test_only_one_reached_the_same_goal() -> None:
    """The run that did not reach the goal in the time the other took is worse, whatever its throughput."""
    told = {"environment": {"goal": "val/accuracy >= 0.97"}}
    a, b = goal_pair(**told)
    missed = run("missed", speed(300, 18), steps=20_000, size=18, train_s=1500.0, info=told)
    assert compare(a, missed).verdict == "worse"
    assert "small reached the goal val/accuracy >= 0.97 after 1 000 s" in compare(a, missed).sentence
    assert compare(missed, b).verdict == "better"
    short = run("short", speed(300, 18), steps=2000, size=18, train_s=150.0, info=told)
    assert compare(a, short).sentence.startswith("short is better than small: throughput rose")


def test_different_goals_do_not_decide() -> None:
    """Times to goals that are known to differ are not compared, and it is told."""
    a, _ = goal_pair(environment={"goal": "val/accuracy >= 0.97"})
    _, b = goal_pair(environment={"goal": "val/accuracy >= 0.5"})
    result = compare(a, b)
    assert row(result, "perf_time/to_goal_s").judgement == "not comparable"
    assert result.verdict == "better"
    assert any("goals differ" in note for note in result.notes)


def test_equal_work_is_judged_by_training_time_and_data_explains() -> None:
    """The same samples in less time is better; the loader's share explains it, in per cent and in time."""
    a = run("starved", speed(100, data_pct=62.0), train_s=320.0)
    b = run("fed", speed(256, data_pct=3.0), train_s=125.0)
    result = compare(a, b)
    assert result.verdict == "better"
    assert result.sentence == (
        "fed is better than starved: the same work took 61 % less time (125 s against 320 s); "
        "it waits for data 3 % of the step against 62 %, 195 ms of the 195 ms a step between them."
    )
    reverse = compare(b, a)
    assert reverse.verdict == "worse"
    assert "it waits for data 62 % of the step against 3 %" in reverse.sentence


def test_warm_up_is_named_where_it_makes_the_difference() -> None:
    """Equal speed after a longer warm-up: the verdict follows training time and names the warm-up."""
    a, b = run("a", speed(100), train_s=320.0), run("b", speed(100))
    slow = RunSummary(
        steps=1000, samples=32_000, metrics=stats(speed(100)), phases={"warmup": 60.0, "train": 319.0}
    )
    b = RunHistory(name="b", source="runs/b", series={}, info=b.info, summary=slow, status=Status.FINISHED)
    result = compare(a, b)
    assert result.verdict == "worse"
    assert "throughput stayed" not in result.sentence
    assert "its warm-up took 60 s against 1 s" in result.sentence


def test_unequal_work_is_judged_by_throughput() -> None:
    """Runs of different length are judged by speed; their training times are not compared."""
    result = compare(run("a", speed(100), steps=1000), run("b", speed(104), steps=3000, train_s=290.0))
    assert result.verdict == "better"
    assert result.sentence == "b is a little better than a: throughput rose 4 % (104 against 100 samples/s)."
    assert row(result, "perf/train_s").judgement == "not comparable"


@pytest.mark.parametrize(
    ("change", "judgement", "band"),
    [
        (2.9, "same", "none"),
        (3.0, "better", "moderate"),
        (7.9, "better", "moderate"),
        (8.0, "better", "material"),
        (-2.9, "same", "none"),
        (-3.0, "worse", "moderate"),
        (-20.0, "worse", "material"),
    ],
)
def test_bands(change: float, judgement: str, band: str) -> None:
    """Below 3 % is the same, from 3 % moderate, from 8 % material, in both directions."""
    a = run("a", {"perf/samples_per_s": 100.0})
    b = run("b", {"perf/samples_per_s": 100.0 + change}, steps=5000)
    result = compare(a, b)
    found = row(result, "perf/samples_per_s")
    assert (found.judgement, found.band) == (judgement, band)
    assert result.verdict == judgement
    assert found.change_pct == pytest.approx(change)


def test_direction_comes_from_the_catalogue() -> None:
    """A longer step is worse, more utilisation is better, and memory business is neither."""
    more = {"perf/gpu_util_pct": 50.0, "perf/mem_busy_pct": 20.0, "perf/mfu_pct": 20.0}
    result = compare(
        run("a", {**speed(100), **more}),
        run("b", {**speed(80), "perf/gpu_util_pct": 70.0, "perf/mem_busy_pct": 40.0, "perf/mfu_pct": 10.0}),
    )
    assert row(result, "perf/step_ms").judgement == "worse"
    assert row(result, "perf/gpu_util_pct").judgement == "better"
    assert row(result, "perf/mem_busy_pct").judgement == "neutral"
    assert row(result, "perf/mfu_pct").judgement == "worse"


def test_absent_is_shown_as_absent() -> None:
    """A metric that one did not measure is None and judged absent, never a change from zero."""
    result = compare(run("a", {**speed(100), "perf/gpu_util_pct": 50.0}), run("b", speed(100)))
    found = row(result, "perf/gpu_util_pct")
    assert (found.a, found.b, found.change_pct, found.judgement) == (50.0, None, None, "absent")
    assert {metric.key for metric in HEADLINE} == {one.key for one in result.rows}


def test_small_shares_do_not_scream() -> None:
    """0.1 % of waiting against 0.3 % is the same; 0 against 30 is worse, though no ratio exists."""
    small = compare(run("a", speed(100, data_pct=0.1)), run("b", speed(100, data_pct=0.3)))
    assert row(small, "perf/data_pct").judgement == "same"
    assert row(small, "perf/data_wait_ms").judgement == "same"
    large = compare(run("a", speed(100, data_pct=0.0)), run("b", speed(70, data_pct=30.0), train_s=143.0))
    found = row(large, "perf/data_pct")
    assert (found.change_pct, found.judgement, found.band) == (None, "worse", "material")
    assert "it waits for data 30 % of the step against 0 %" in large.sentence


def test_same_run_twice() -> None:
    """The same run is the same, and it is told that it is one run."""
    a = run("a", speed(100))
    result = compare(a, a)
    assert result.verdict == "same"
    assert result.sentence.startswith("run B and run A are the same within 3 %: ")
    assert result.notes[0] == "Both are the same run: runs/a."


def test_differences_are_listed() -> None:
    """Place, size, settings of loader and run, tags: what differs is listed, what is equal is not."""
    a = run("a", speed(100), info={
        "world_size": 1, "environment": {"host": "x", "gpu": "H200", "python": "3.11"},
        "loader": {"num_workers": 0}, "config": {"lr": 0.1, "deep": {"a": 1}}, "tags": {"model": "m"},
    })  # fmt: skip
    b = run("b", speed(200), info={
        "world_size": 2, "environment": {"host": "y", "python": "3.11"},
        "loader": {"num_workers": 4}, "config": {"lr": 0.2, "deep": {"a": 1}}, "tags": {"model": "m"},
    })  # fmt: skip
    assert compare(a, b).differences == (
        "training processes: 1 against 2",
        "gpu: H200 against absent",
        "host: x against y",
        "num_workers: 0 against 4",
        "lr: 0.1 against 0.2",
    )


def test_many_differing_settings_are_counted() -> None:
    """A list of a hundred settings does not bury the rest."""
    a = run("a", speed(100), info={"config": {f"k{i:03}": i for i in range(100)}})
    found = compare(a, run("b", speed(100))).differences
    assert len(found) == 21
    assert found[-1] == "and 80 more of config"


def test_token_definitions_that_differ() -> None:
    """Tokens that are not the same thing are not compared; another measure of speed decides."""
    one = {"perf/tokens_per_s": 1000.0, "perf/step_ms": 100.0}
    other = {"perf/tokens_per_s": 2000.0, "perf/step_ms": 100.0}
    a = run("a", one, steps=500, size=None, info={"environment": {"tokens": "attention_mask"}})
    b = run("b", other, size=None, info={"environment": {"tokens": "padded"}})
    result = compare(a, b)
    assert row(result, "perf/tokens_per_s").judgement == "not comparable"
    assert result.verdict == "same"
    assert "tokens: attention_mask against padded" in result.differences


def test_no_steady_window_is_not_comparable() -> None:
    """A run that never left its warm-up gets no verdict, with the reason."""
    result = compare(run("a", speed(100)), run("b", steps=8))
    assert result.verdict == "not comparable"
    assert result.sentence == "b and a are not comparable: b has no steady window in its 8 steps."


def test_only_step_times_of_different_batches_are_not_comparable() -> None:
    """Time per step alone says nothing where a step is another number of samples."""
    a = run("a", {"perf/step_ms": 100.0}, size=16)
    b = run("b", {"perf/step_ms": 150.0}, size=64)
    result = compare(a, b)
    assert result.verdict == "not comparable"
    assert "a step is not the same number of samples" in result.sentence


def test_unfinished_and_damaged_runs_are_never_compared_silently() -> None:
    """A run without a summary is judged from its points, and both sentence and notes say so."""
    series = {
        "perf/samples_per_s": points([50.0, 50.0, 52.0, math.nan, 50.0]),
        "perf/step_ms": points([640.0] * 4),
        "perf/train_s": points([10.0, 20.0, 30.0, 40.0, 50.0]),
    }
    cut = RunHistory(
        name="broken",
        source="runs/broken",
        series=series,
        info=RunInfo(run_id="0" * 32, name="broken", dir="runs", started_at=1e9),
        problems=("the file is cut after 50 steps.",),
    )
    result = compare(run("a", speed(100)), cut)
    assert result.verdict == "worse"
    assert result.sentence.endswith(" Read it with care: broken is damaged and unfinished.")
    assert "broken: the file is cut after 50 steps." in result.notes
    assert any("did not come to its end" in note for note in result.notes)
    assert any("few steady windows (4)" in note for note in result.notes)
    assert row(result, "perf/samples_per_s").b == 50.0
    assert row(result, "perf/train_s").b == 50.0
    assert row(result, "perf/train_s").judgement == "not comparable"


def test_equal_steps_of_different_batches_are_not_equal_work() -> None:
    """Where samples were not counted, as many steps of another size are not the same work."""
    speeds = {"perf/tokens_per_s": 100.0}
    a = run("a", speeds, size=None, series={"perf_step/samples": points([16.0] * 9)})
    b = run("b", speeds, size=None, series={"perf_step/samples": points([64.0] * 9)}, train_s=300.0)
    assert row(compare(a, b), "perf/train_s").judgement == "not comparable"
    assert row(compare(a, a), "perf/train_s").judgement == "same"


def test_waiting_does_not_explain_the_opposite() -> None:
    """A run that is faster although it waits more is not said to be faster for its waiting."""
    sentence = compare(
        run("a", speed(100, data_pct=5.0)), run("b", speed(200, data_pct=40.0), train_s=50.0)
    ).sentence
    assert "b is better than a" in sentence
    assert "waits" not in sentence


def test_prefix_of_the_run_is_honoured() -> None:
    """A run written under another prefix is read by the same names."""
    series = {"speed/samples_per_s": points([100.0] * 6), "speed_step/samples": points([32.0] * 6)}
    about = RunInfo(run_id="0" * 32, name="p", dir="runs", started_at=1e9, prefix="speed")
    other = RunHistory(name="p", source="runs/p", series=series, info=about)
    assert row(compare(run("a", speed(100)), other), "perf/samples_per_s").b == 100.0
    summed = run("q", {"speed/samples_per_s": 120.0}, info={"prefix": "speed"})
    assert row(compare(run("a", speed(100)), summed), "perf/samples_per_s").b == 120.0


def test_notes_about_resume_loss_and_ending() -> None:
    """Work done twice, lost points and a run that was killed are told; so is a foreign run."""
    b = run(
        "b", speed(100), n=3, redone_steps=50, redone_s=12.0, status=Status.KILLED,
        summary={"dropped": {"points/tensorboard": 7}},
    )  # fmt: skip
    notes = " ".join(compare(run("a", speed(100), info=None), b).notes)
    assert "b did 50 steps twice after a resume; the 12 s of the first time" in notes
    assert "b lost 7 points" in notes
    assert "b ended as killed." in notes
    assert "few steady windows (3)" in notes
    foreign = RunHistory(name="f", source="f", series={"perf/samples_per_s": points([9.0] * 9)})
    result = compare(foreign, b)
    assert "f was not written by trackperf: what it ran on is not known." in result.notes


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison is JSON without bare NaN, and addresses are read through the registry."""
    stored = {"runs/a": run("a", speed(100)), "runs/b": run("b", speed(50), train_s=200.0)}
    monkeypatch.setattr(registry, "read_run", lambda address: stored[address])
    result = compare("runs/a", "runs/b")
    text = json.dumps(result.to_dict(), allow_nan=False)
    loaded = json.loads(text)
    assert (loaded["verdict"], loaded["a"], loaded["b"]) == ("worse", "a", "b")
    assert loaded["rows"][0]["key"] == "perf/train_s"
    assert loaded["rows"][0]["judgement"] == "worse"
