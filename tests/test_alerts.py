"""The alert engine: raising, clearing, holding still, telling once, and its settings."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trackperf.alerts import AlertEngine, Rule, build_rules
from trackperf.errors import ConfigError
from trackperf.metrics import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trackperf.record import Alert

DATA = "perf/data_pct"
LOADER = build_rules()[0]


class Bench:
    """An engine, its clock (two seconds a window), and what it said."""

    def __init__(self, *rules: Rule, min_window_s: float = 0.5) -> None:
        self.now_ns = 0
        self.step = 0
        self.said: list[Alert] = []
        self.engine = AlertEngine(rules or [LOADER], clock=lambda: self.now_ns, min_window_s=min_window_s)

    def window(self, values: Mapping[str, float], steps: int = 20) -> list[Alert]:
        """Judge one window, two seconds after the last."""
        self.now_ns += 2_000_000_000
        self.step += steps
        alerts = self.engine.judge(values, step=self.step, steps=steps, wall_time=1e9 + self.now_ns / 1e9)
        self.said += alerts
        return alerts

    def shares(self, shares: Iterable[float]) -> list[str]:
        """Judge windows of these data shares; return the changes."""
        before = len(self.said)
        for share in shares:
            self.window({DATA: share, "perf/step_ms": 100.0})
        return [alert.state for alert in self.said[before:]]

    @property
    def flag(self) -> float:
        """The series of the rule."""
        return self.engine.flags()["perf_alert/loader_latency"]


def rule(**changes: Any) -> Rule:
    """Return the shipped rule, without its texts, changed."""
    settings: dict[str, Any] = {
        "name": "loader_latency",
        "level": "warning",
        "key": DATA,
        "threshold": 10.0,
        "clear": 8.0,
    }
    return Rule(**{**settings, **changes})


def test_raises_after_three_windows_with_evidence() -> None:
    """Three windows beyond the threshold raise it once, with share, time, level, step and threshold."""
    bench = Bench()
    values = {DATA: 34.0, "perf/step_ms": 150.0}
    assert bench.window(values) == bench.window(values) == []
    assert bench.flag == 0
    (alert,) = bench.window(values)
    assert bench.window(values) == []
    assert (alert.rule, alert.state, alert.level) == ("loader_latency", "raised", "warning")
    assert (alert.step, alert.value, alert.threshold) == (60, 34.0, 10.0)
    assert alert.wall_time == 1e9 + 6
    assert alert.cause == "the loader keeps the training waiting for 34 % of each step (51 ms of 150 ms)"
    assert "num_workers" in alert.advice
    assert bench.engine.flags() == {"perf_alert/loader_latency": 1.0, "perf_alert/active": 1.0}


def test_cause_without_step_time() -> None:
    """Where the step time is absent, the cause states the share alone."""
    bench = Bench()
    (alert,) = [alert for _ in range(3) for alert in bench.window({DATA: 34.0})]
    assert alert.cause.endswith("34 % of each step")


def test_flags_from_the_first_window() -> None:
    """A rule has its 0 from the first window that has its inputs, however short, and none without them."""
    bench = Bench(*build_rules())
    assert bench.engine.flags() == {}
    bench.window({"perf/step_ms": 1.0}, steps=1)
    assert bench.engine.flags() == {"perf_alert/throughput_drop": 0.0, "perf_alert/active": 0.0}
    bench.window({"perf/step_ms": 1.0, DATA: 1.0}, steps=1)
    assert bench.engine.flags()["perf_alert/loader_latency"] == 0
    assert set(bench.engine.abstained) == {rule.name for rule in build_rules()} - {
        "loader_latency",
        "throughput_drop",
    }
    assert "perf_gpu/mem_used_pct is not measured" in bench.engine.abstained["gpu_memory"]
    assert AlertEngine([]).flags() == {}


def test_every_flag_is_in_the_catalogue() -> None:
    """Each shipped rule has its row."""
    assert {f"perf_alert/{rule.name}" for rule in build_rules()} <= set(CATALOGUE)


def test_clears_after_three_windows() -> None:
    """It clears below the clear level for three windows, and says after how long."""
    bench = Bench()
    assert bench.shares([30, 30, 30, 7, 7]) == ["raised"]
    assert bench.flag == 1
    assert bench.shares([7]) == ["cleared"]
    assert bench.flag == 0
    cleared = bench.said[-1]
    assert (cleared.value, cleared.threshold, cleared.advice) == (7.0, 8.0, "")
    assert cleared.cause == "waiting for data is 7 %, below 8 % again after 6 s"


def test_does_not_flap_between_the_levels() -> None:
    """Values that swing about the threshold, above the clear level, neither clear nor raise again."""
    bench = Bench()
    assert bench.shares([12, 12, 12] + [9, 11] * 50) == ["raised"]
    assert bench.flag == 1


def test_exactly_at_a_level_is_not_beyond_it() -> None:
    """10 % does not raise, 8 % does not clear."""
    bench = Bench()
    assert bench.shares([10.0] * 20) == []
    assert bench.shares([12, 12, 12] + [8.0] * 20) == ["raised"]


def test_one_healthy_window_ends_the_row() -> None:
    """Two windows beyond, one clearly healthy, two beyond: no alert; the same for clearing."""
    bench = Bench()
    assert bench.shares([30, 30, 5, 30, 30, 5]) == []
    assert bench.shares([30, 30, 30, 5, 5, 30, 5, 5]) == ["raised"]
    assert bench.flag == 1


def test_a_window_between_the_levels_holds_the_row() -> None:
    """One window just below the threshold does not hide a share that lies beyond it on the whole."""
    assert Bench().shares([12, 9.5, 12, 12]) == ["raised"]


def test_a_window_between_the_levels_does_not_count() -> None:
    """Two windows beyond the threshold with one between are two, not three."""
    bench = Bench()
    assert bench.shares([12, 9.5, 12]) == []
    assert bench.shares([12]) == ["raised"]


def test_an_outlier_does_not_carry_what_follows() -> None:
    """After one window of 90 %, windows about 9 % with one just beyond the threshold are no alert."""
    assert Bench().shares([90, 9, 9, 10.1, 9, 10.1, 9]) == []


def test_a_row_that_is_not_beyond_on_the_whole_ends() -> None:
    """Windows that lie just below the threshold with few just beyond it do not add up to an alert."""
    assert Bench().shares([10.4, 9.0, 10.4, 9.0, 10.4, 9.0] * 20) == []


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_absent_input_freezes_the_rule(bad: float | None) -> None:
    """An absent or unusable value neither raises, clears nor breaks a row."""
    bench = Bench()
    nothing = {"perf/step_ms": 100.0} if bad is None else {DATA: bad, "perf/step_ms": 100.0}
    assert [alert for _ in range(10) for alert in bench.window(nothing)] == []
    assert bench.shares([30, 30]) == []
    bench.window(nothing)
    assert bench.shares([30]) == ["raised"]
    for _ in range(10):
        assert bench.window(nothing) == []
    assert bench.flag == 1
    assert bench.shares([5, 5]) == []
    bench.window(nothing)
    assert bench.shares([5]) == ["cleared"]


def test_few_steps_prove_little() -> None:
    """Windows of one step each raise only when they cover six steps together."""
    bench = Bench()
    slow = {DATA: 40.0, "perf/step_ms": 5000.0}
    counts = [len(bench.window(slow, steps=1)) for _ in range(7)]
    assert counts == [0, 0, 0, 0, 0, 1, 0]


def test_short_windows_are_put_together() -> None:
    """A window cut short by a phase is judged with what follows, weighted by time, not as a window."""
    bench = Bench()
    short = {DATA: 90.0, "perf/step_ms": 10.0}
    assert [alert for _ in range(12) for alert in bench.window(short, steps=4)] == []
    healthy = {DATA: 0.0, "perf/step_ms": 100.0}
    assert [alert for _ in range(5) for alert in bench.window(healthy)] == []
    merged = Bench()
    parts = [{DATA: 80.0, "perf/step_ms": 20.0}, {DATA: 20.0, "perf/step_ms": 40.0}] * 30
    (alert,) = [alert for part in parts for alert in merged.window(part, steps=10)]
    assert alert.value == pytest.approx((80 * 0.2 + 20 * 0.4) / 0.6)
    assert "of 30 ms" in alert.cause


def test_empty_window_counts_for_nothing() -> None:
    """A window without a step is not judged."""
    bench = Bench()
    assert [alert for _ in range(10) for alert in bench.window({DATA: 90.0}, steps=0)] == []
    assert bench.shares([30, 30, 30]) == ["raised"]
    assert [alert for _ in range(10) for alert in bench.window({DATA: 1.0}, steps=0)] == []


def test_cooldown_tells_once_and_flag_follows() -> None:
    """Within the cooldown the flag goes up and down with the truth, but nobody is told."""
    bench = Bench(rule(cooldown_s=100.0))
    assert bench.shares([30] * 3 + [5] * 3) == ["raised", "cleared"]
    assert bench.shares([30] * 3) == []
    assert bench.flag == 1
    assert bench.shares([5] * 3) == []
    assert bench.flag == 0
    assert bench.shares([30] * 3 + [5] * 3 + [5] * 40) == []
    assert bench.shares([30] * 3) == ["raised"]
    assert bench.said[-1].cause.endswith("(since the last alert it also came and went 2 times)")


def test_still_raised_when_the_cooldown_ends_is_told_then() -> None:
    """An alert that came back in the cooldown and stayed is not lost."""
    bench = Bench(rule(cooldown_s=60.0))
    assert bench.shares([30] * 3 + [5] * 3) == ["raised", "cleared"]
    assert bench.shares([30] * 29) == []
    assert bench.shares([5, 5]) == []
    assert bench.shares([30]) == ["raised"]
    assert bench.shares([5] * 3) == ["cleared"]


def test_direction_below() -> None:
    """A rule may watch for values that are too low."""
    low = rule(name="gpu", key="perf/gpu_util_pct", threshold=30.0, clear=40.0, direction="below")
    bench = Bench(low)
    for value in (20.0, 20.0, 20.0):
        said = bench.window({"perf/gpu_util_pct": value, "perf/step_ms": 100.0})
    assert said[0].cause == "GPU utilisation is 20 % (below 30 %)"
    for value in (35.0, 50.0, 50.0, 50.0):
        said = bench.window({"perf/gpu_util_pct": value, "perf/step_ms": 100.0})
    assert said[0].cause == "GPU utilisation is 50 %, above 40 % again after 8 s"


def test_equal_levels_still_work() -> None:
    """A clear level equal to the threshold raises and clears."""
    bench = Bench(rule(clear=10.0))
    assert bench.shares([11, 11, 11, 9, 9, 9]) == ["raised", "cleared"]


def test_failing_texts_do_not_cost_the_alert(caplog: pytest.LogCaptureFixture) -> None:
    """Advice or cause that raises leaves the alert with a plain text, and one warning."""

    def broken(*_: object) -> str:
        raise ZeroDivisionError

    engine = AlertEngine([rule(cause=broken, cooldown_s=0.0)])
    with caplog.at_level(logging.WARNING, logger="trackperf"):
        said = [
            alert
            for share in [30.0] * 3 + [1.0] * 3 + [30.0] * 3
            for alert in engine.judge({DATA: share}, step=1, steps=20, wall_time=0.0, advise=broken)
        ]
    assert [alert.state for alert in said] == ["raised", "cleared", "raised"]
    assert said[0].cause == "waiting for data is 30 % (above 10 %)"
    assert len(caplog.records) == 1


def test_advice_comes_from_the_caller() -> None:
    """What the caller writes is the advice; when it has nothing to say, the rule's own stands."""
    for text, expected in (("Set num_workers=4", "Set num_workers=4"), ("", "more")):
        engine = AlertEngine([rule(advice=lambda *_: "more")])
        said: list[Alert] = []
        for _ in range(3):
            said += engine.judge(
                {DATA: 30.0}, step=1, steps=20, wall_time=0.0, advise=lambda *_, text=text: text
            )
        assert said[0].advice == expected


def noisy(share: float, windows: int, seed: int) -> list[float]:
    """Return window shares with 10 % jitter and 1 % outliers of ten times."""
    random = np.random.default_rng(seed)
    factors = (1 + 0.1 * random.standard_normal(windows)) * np.where(random.random(windows) < 0.01, 10.0, 1.0)
    return [float(value) for value in np.clip(share * factors, 0.0, 100.0)]


@pytest.mark.parametrize("share", [0.5, 4.0, 7.0])
def test_no_false_alarm_in_healthy_noise(share: float) -> None:
    """1 000 noisy healthy windows, five times over: no alert."""
    for seed in range(5):
        assert Bench().shares(noisy(share, 1000, seed)) == []


def test_true_trouble_is_raised_within_five_windows() -> None:
    """A true 12 % with the same noise is raised within five windows in 99 runs of 100."""
    found = sum("raised" in Bench().shares(noisy(12.0, 5, seed)) for seed in range(300))
    assert found >= 297


def test_judging_is_cheap() -> None:
    """All rules over a window of eight GPUs cost less than 200 us."""
    bench = Bench(*build_rules())
    gpus = {
        f"perf_gpu{gpu}/{key[9:]}": 1.0 for gpu in range(8) for key in CATALOGUE if key[:9] == "perf_gpu/"
    }
    values = {**dict.fromkeys(CATALOGUE, 1.0), **gpus, DATA: 12.0, "perf/step_ms": 100.0}
    rounds = []
    for _ in range(5):
        begin = time.thread_time_ns()
        for _ in range(200):
            bench.window(values)
        rounds.append((time.thread_time_ns() - begin) / 200 / 1e3)
    assert min(rounds) < 200


def test_settings_choose_the_rules() -> None:
    """None and True give the shipped rules, False none, a name with False all but that."""
    shipped = build_rules(None)
    first = shipped[0]
    assert (first.name, first.threshold, first.clear, first.windows) == ("loader_latency", 10, 8, 3)
    assert build_rules(True) == build_rules({}) == build_rules({"loader_latency": True}) == shipped
    assert build_rules({"loader_latency": False}) == shipped[1:]
    assert build_rules(False) == []


def test_settings_change_a_rule() -> None:
    """Overrides change what they name; a new threshold takes the clear level along."""
    changed = build_rules({"loader_latency": {"threshold": 20, "windows": 5}})[0]
    assert (changed.threshold, changed.clear, changed.windows, changed.clear_windows) == (20, 16.0, 5, 3)
    own = build_rules({"loader_latency": {"threshold": 20, "clear": 19, "cooldown_s": 0}})[0]
    assert (own.clear, own.cooldown_s) == (19, 0)
    high = {rule.name: rule for rule in build_rules({"gpu_underused": {"threshold": 99}})}["gpu_underused"]
    assert high.threshold < high.clear < 100


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("yes", "alerts must be True, False or a mapping"),
        ({"loader_latancy": False}, "Did you mean 'loader_latency'?"),
        ({3: False}, "there is no rule 3"),
        ({"loader_latency": 20}, "must be True, False or a mapping of settings"),
        ({"loader_latency": {"treshold": 20}}, "Did you mean 'threshold'?"),
        ({"loader_latency": {"threshold": "20"}}, "threshold must be a finite number (got '20')"),
        ({"loader_latency": {"threshold": math.nan}}, "threshold must be a finite number (got nan)"),
        ({"loader_latency": {"threshold": True}}, "threshold must be a finite number (got True)"),
        ({"loader_latency": {"threshold": 0}}, "between 0 and 100"),
        ({"loader_latency": {"threshold": 120}}, "between 0 and 100"),
        ({"loader_latency": {"clear": 11}}, "the clear level must lie at or below the threshold"),
        ({"loader_latency": {"windows": 0}}, "windows must be a whole number from 1 (got 0)"),
        ({"loader_latency": {"windows": 2.5}}, "windows must be a whole number from 1 (got 2.5)"),
        ({"loader_latency": {"cooldown_s": -1}}, "cooldown_s must be at least 0 (got -1)"),
        ({"loader_latency": {"level": "loud"}}, "level must be one of ('notice', 'warning') (got 'loud')"),
    ],
)
def test_bad_settings_are_refused(settings: Any, told: str) -> None:
    """What cannot work is refused with what was got and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        build_rules(settings)
    assert told in str(caught.value)


def test_rule_name_must_make_a_key() -> None:
    """A rule's name becomes part of a series key."""
    with pytest.raises(ConfigError, match="lower case"):
        rule(name="GPU %")
