"""The shipped rules: each raises, clears, holds still at its threshold, and abstains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trackperf.alerts import AlertEngine, build_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trackperf.record import Alert
    from trackperf.rule import Rule

HEALTHY: Mapping[str, float] = {
    "perf/samples_per_s": 1000.0, "perf/step_ms": 256.0, "perf_step/samples": 256.0, "perf/data_pct": 2.0,
    "perf/data_wait_ms": 5.0, "perf_data/startup_pct": 1.0, "perf_data/first_batch_ms": 900.0,
    "perf/gpu_util_pct": 98.0, "perf/mem_bw_pct": 40.0, "perf_gpu/sm_active_pct": 80.0,
    "perf_gpu/tensor_active_pct": 40.0, "perf_gpu/mem_bw_gb_s": 1900.0, "perf_gpu/mem_used_pct": 70.0,
    "perf_gpu0/mem_used_pct": 70.0, "perf_gpu0/mem_used_gib": 56.0, "perf_gpu/temp_c": 60.0,
    "perf_gpu0/temp_c": 60.0, "perf_gpu/thermal_throttle_pct": 0.0,
}  # fmt: skip
"""A training on one GPU that does well."""

SHIPPED: Mapping[str, Rule] = {rule.name: rule for rule in build_rules()}


@dataclass(frozen=True)
class Case:
    """Values that make a rule's window bad, between its levels, good, or one that cannot be judged."""

    rule: str
    bad: Mapping[str, float]
    between: Mapping[str, float]
    said: str
    drops: tuple[str, ...]


CASES = (
    Case("loader_latency", {"perf/data_pct": 34.0}, {"perf/data_pct": 9.0}, "34 % of each step",
         ("perf/data_pct",)),
    Case("loader_startup", {"perf_data/startup_pct": 30.0}, {"perf_data/startup_pct": 9.0},
         "waiting for the first batch takes 30 % of a pass (900 ms each time)", ("perf_data/startup_pct",)),
    Case("gpu_underused", {"perf/gpu_util_pct": 60.0}, {"perf/gpu_util_pct": 91.0},
         "a kernel ran for only 60 % of the time (the wait for data is 2 % of a step, SM activity is 80 %)",
         ("perf/gpu_util_pct",)),
    Case("gpu_busy_inefficient", {"perf_gpu/sm_active_pct": 20.0}, {"perf_gpu/sm_active_pct": 52.0},
         "only 20 % of its multiprocessors work: many small kernels", ("perf_gpu/sm_active_pct",)),
    Case("bandwidth_bound", {"perf/mem_bw_pct": 75.0, "perf_gpu/tensor_active_pct": 5.0},
         {"perf/mem_bw_pct": 57.0, "perf_gpu/tensor_active_pct": 5.0},
         "moves at 75 % of its peak (1 900 GB/s) while SM activity is 80 % and tensor activity is 5 %",
         ("perf/mem_bw_pct",)),
    Case("gpu_memory", {"perf_gpu0/mem_used_pct": 97.0}, {"perf_gpu0/mem_used_pct": 94.0},
         "the memory of GPU 0 is 97 % full (56 GiB of 58 GiB)",
         ("perf_gpu0/mem_used_pct", "perf_gpu/mem_used_pct")),
    Case("gpu_temperature", {"perf_gpu0/temp_c": 88.0}, {"perf_gpu0/temp_c": 84.0}, "GPU 0 is at 88 C",
         ("perf_gpu0/temp_c", "perf_gpu/temp_c")),
    Case("throughput_drop", {"perf/samples_per_s": 600.0}, {"perf/samples_per_s": 830.0},
         "60 % of its own steady pace (600 samples/s, the median of this run is 1 000)",
         ("perf/samples_per_s", "perf/step_ms")),
)  # fmt: skip


class Run:
    """An engine with one rule, or all, its clock (two seconds a window), and what it said."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.now_ns = 0
        self.uses_device = True
        self.engine = AlertEngine(
            [rule for rule in build_rules(settings or None) if not names or rule.name in names],
            clock=lambda: self.now_ns,
            uses_device=lambda: self.uses_device,
        )

    def windows(
        self, count: int, changes: Mapping[str, float], *, without: Iterable[str] = ()
    ) -> list[Alert]:
        """Judge windows that differ from a healthy one; return what was said."""
        values = {key: value for key, value in {**HEALTHY, **changes}.items() if key not in without}
        said = []
        for _ in range(count):
            self.now_ns += 2_000_000_000
            said += self.engine.judge(values, step=self.now_ns // 10**8, steps=20, wall_time=0.0)
        return said

    def flag(self, name: str) -> float | None:
        """The series of a rule; None while it has none."""
        return self.engine.flags().get(f"perf_alert/{name}")


@pytest.fixture(params=CASES, ids=[case.rule for case in CASES])
def case(request: pytest.FixtureRequest) -> Case:
    """Each shipped rule in turn."""
    assert isinstance(request.param, Case)
    return request.param


def test_every_rule_has_a_case() -> None:
    """No rule ships without its case here."""
    assert [case.rule for case in CASES] == list(SHIPPED)


def test_raises_and_clears(case: Case) -> None:
    """Bad windows in a row raise the rule, one fewer does not; good windows clear it."""
    run, rule = Run(case.rule), SHIPPED[case.rule]
    assert run.windows(30, {}) == []
    assert run.windows(rule.windows - 1, case.bad) == []
    assert run.windows(1, {}) == []
    (raised,) = run.windows(rule.windows, case.bad)
    assert (raised.rule, raised.state, raised.level) == (case.rule, "raised", rule.level)
    assert case.said in raised.cause
    assert run.flag(case.rule) == 1
    assert run.windows(rule.clear_windows - 1, {}) == []
    (cleared,) = run.windows(1, {})
    assert cleared.state == "cleared"
    assert run.flag(case.rule) == 0


def test_does_not_flap(case: Case) -> None:
    """Between the levels a quiet rule stays quiet and a raised one raised, also when bad ones alternate."""
    run, rule = Run(case.rule), SHIPPED[case.rule]
    assert run.windows(30, {}) == []
    assert run.windows(10, case.between) == []
    assert len(run.windows(rule.windows, case.bad)) == 1
    for _ in range(10):
        assert run.windows(1, case.between) + run.windows(1, case.bad) == []
    assert run.flag(case.rule) == 1


def test_abstains(case: Case) -> None:
    """Without its input a rule neither raises nor clears, has no flag if it never had it, and says why."""
    run, rule = Run(case.rule), SHIPPED[case.rule]
    gone = {*case.drops, *(rule.inputs or (rule.key,))}
    assert run.windows(40, case.bad, without=gone) == []
    assert run.engine.flags() == {}
    assert "measured" in run.engine.abstained[case.rule]
    run.windows(30, {})
    assert len(run.windows(rule.windows, case.bad)) == 1
    assert run.windows(10, {}, without=case.drops) == []
    assert run.flag(case.rule) == 1


@pytest.mark.parametrize("key", ["perf/gpu_util_pct", "perf_gpu/sm_active_pct", "perf_gpu0/temp_c"])
def test_what_is_not_finite_is_absent(key: str) -> None:
    """A value that is no number is as one that is not there."""
    run = Run()
    assert run.windows(20, {key: math.nan}) == []
    assert len(run.windows(3, {"perf_gpu/sm_active_pct": 20.0})) == 1
    assert run.windows(10, {"perf_gpu/sm_active_pct": 20.0, "perf/gpu_util_pct": math.nan}) == []
    assert run.flag("gpu_busy_inefficient") == 1


class TestUnderused:
    """Low utilisation is a notice, and a warning with a second witness."""

    @pytest.mark.parametrize(
        ("witness", "level"),
        [
            ({}, "notice"),
            ({"perf/data_pct": 30.0}, "warning"),
            ({"perf_gpu/sm_active_pct": 20.0}, "warning"),
        ],
    )
    def test_level(self, witness: Mapping[str, float], level: str) -> None:
        """Exposed wait or low SM activity makes it a warning."""
        (alert,) = Run("gpu_underused").windows(3, {"perf/gpu_util_pct": 60.0, **witness})
        assert alert.level == level

    def test_one_window_is_no_witness(self) -> None:
        """A wait in one window of three leaves it a notice."""
        run, low = Run("gpu_underused"), {"perf/gpu_util_pct": 60.0}
        run.windows(2, low)
        (alert,) = run.windows(1, {**low, "perf/data_pct": 50.0})
        assert alert.level == "notice"

    def test_cleared_as_loud_as_raised(self) -> None:
        """The end of a warning is told as that of a warning."""
        run = Run("gpu_underused")
        run.windows(3, {"perf/gpu_util_pct": 60.0, "perf/data_pct": 30.0})
        (cleared,) = run.windows(3, {})
        assert (cleared.state, cleared.level) == ("cleared", "warning")

    def test_without_witnesses(self) -> None:
        """A GPU that tells no SM activity, in a loop that marks no fetch, is judged by utilisation alone."""
        gone = ("perf/data_pct", "perf_gpu/sm_active_pct")
        (alert,) = Run("gpu_underused").windows(3, {"perf/gpu_util_pct": 60.0}, without=gone)
        assert (alert.level, alert.cause) == ("notice", "a kernel ran for only 60 % of the time")

    def test_a_device_on_which_nothing_runs(self) -> None:
        """A device at 0 % is not the one that trains."""
        assert Run("gpu_underused").windows(10, {"perf/gpu_util_pct": 0.0}) == []


class TestUseOfTheDevice:
    """How a device is used is asked only of a training that uses it."""

    def test_a_device_that_is_only_read(self) -> None:
        """No rule of use has a flag, or says a word; memory and heat are judged all the same."""
        run = Run()
        run.uses_device = False
        bad = {"perf/gpu_util_pct": 30.0, "perf_gpu/sm_active_pct": 5.0, "perf/mem_bw_pct": 90.0}
        assert run.windows(20, bad) == []
        for name in ("gpu_underused", "gpu_busy_inefficient", "bandwidth_bound"):
            assert run.flag(name) is None
            assert "does not use the GPU" in run.engine.abstained[name]
        assert run.flag("gpu_memory") == run.flag("gpu_temperature") == 0


class TestInefficient:
    """Small kernels show on a busy GPU alone, and not where bandwidth is the limit."""

    def test_only_on_a_busy_gpu(self) -> None:
        """Below 90 % of utilisation it is another rule's matter; raised, it stays a little below."""
        run, low = Run("gpu_busy_inefficient"), {"perf_gpu/sm_active_pct": 20.0}
        assert run.windows(20, {**low, "perf/gpu_util_pct": 88.0}) == []
        assert len(run.windows(3, low)) == 1
        assert run.windows(20, {**low, "perf/gpu_util_pct": 88.0}) == []
        (cleared,) = run.windows(3, {**low, "perf/gpu_util_pct": 50.0})
        assert cleared.cause == "SM activity is 20 %, and what made it an alert is over after 46 s"

    def test_not_where_bandwidth_is_the_limit(self) -> None:
        """With memory at its limit it is `bandwidth_bound` that speaks, alone."""
        said = Run().windows(10, {"perf_gpu/sm_active_pct": 20.0, "perf/mem_bw_pct": 80.0})
        assert [alert.rule for alert in said] == ["bandwidth_bound"]

    def test_without_utilisation(self) -> None:
        """A slice of a GPU has SM activity but no utilisation: it abstains."""
        run = Run("gpu_busy_inefficient")
        assert run.windows(10, {"perf_gpu/sm_active_pct": 20.0}, without=["perf/gpu_util_pct"]) == []


class TestBandwidth:
    """High bandwidth is the limit only where the arithmetic rests."""

    def test_not_with_busy_tensor_cores(self) -> None:
        """Bandwidth and arithmetic both high is a GPU well used."""
        assert Run("bandwidth_bound").windows(20, {"perf/mem_bw_pct": 80.0}) == []

    def test_without_activity(self) -> None:
        """Without any measure of arithmetic it abstains."""
        gone = ("perf_gpu/sm_active_pct", "perf_gpu/tensor_active_pct")
        assert Run("bandwidth_bound").windows(20, {"perf/mem_bw_pct": 80.0}, without=gone) == []


class TestDevices:
    """Memory and heat are those of the worst device."""

    def test_the_worst_of_several(self) -> None:
        """One full device among empty ones is named."""
        full = {"perf_gpu0/mem_used_pct": 20.0, "perf_gpu3/mem_used_pct": 99.0, "perf_gpu/mem_used_pct": 59.0}
        (alert,) = Run("gpu_memory").windows(3, full)
        assert "GPU 3 is 99 % full" in alert.cause
        assert alert.value == 99

    def test_throttling_at_any_temperature(self) -> None:
        """Clocks held down by heat raise it at 60 C, and it clears when they are not any more."""
        run = Run("gpu_temperature")
        (alert,) = run.windows(
            3, {"perf_gpu/thermal_throttle_pct": 4.0, "perf_gpu0/thermal_throttle_pct": 4.0}
        )
        assert alert.cause == "GPU 0 is at 60 C; heat held the clocks of GPU 0 down for 4 % of the time"
        assert [alert.state for alert in run.windows(3, {})] == ["cleared"]


class TestDrop:
    """The run's own pace is what it is measured against."""

    def test_not_before_the_pace_is_known(self) -> None:
        """A run that begins slow and becomes fast, or the reverse, within 20 windows says nothing."""
        run = Run("throughput_drop")
        assert run.windows(10, {}) + run.windows(9, {"perf/samples_per_s": 300.0}) == []
        assert run.flag("throughput_drop") == 0

    def test_tokens_come_first(self) -> None:
        """Where tokens are counted, sequences of another length are no drop."""
        run = Run("throughput_drop")
        run.windows(30, {"perf/tokens_per_s": 1e5})
        assert run.windows(10, {"perf/tokens_per_s": 1e5, "perf/samples_per_s": 300.0}) == []
        (alert,) = run.windows(3, {"perf/tokens_per_s": 5e4})
        assert "50 000 tokens/s" in alert.cause

    def test_by_steps_alone(self) -> None:
        """Where samples are not known, the time of a step tells."""
        run, gone = Run("throughput_drop"), ["perf/samples_per_s"]
        run.windows(30, {}, without=gone)
        (alert,) = run.windows(3, {"perf/step_ms": 512.0}, without=gone)
        assert "50 % of its own steady pace (512 ms a step, the median of this run is 256)" in alert.cause

    def test_noise_is_no_drop(self) -> None:
        """In a run whose windows swing by 30 %, three slow ones in a row are nothing special."""
        run, random = Run("throughput_drop"), np.random.default_rng(0)
        for factor in np.clip(1 + 0.3 * random.standard_normal(1000), 0.1, 3.0):
            assert run.windows(1, {"perf/samples_per_s": 1000.0 * float(factor)}) == []

    def test_a_change_for_good_becomes_usual(self) -> None:
        """A lasting change clears once it has lasted for half of the run."""
        run = Run("throughput_drop")
        run.windows(100, {})
        assert len(run.windows(50, {"perf/samples_per_s": 500.0})) == 1
        (cleared,) = run.windows(100, {"perf/samples_per_s": 500.0})
        assert cleared.state == "cleared"

    def test_a_long_run_in_bounded_memory(self) -> None:
        """After 20 000 windows no more values are kept than after 200, spread over all: a drop stays one."""
        run = Run("throughput_drop")
        run.windows(20_000, {})
        tracks = run.engine._steady._tracks.values()
        assert max(len(track._values) for track in tracks) <= 128
        assert [alert.state for alert in run.windows(2000, {"perf/samples_per_s": 700.0})] == ["raised"]


def test_start_up_of_short_passes_is_usual() -> None:
    """Where a pass is a few steps, any first batch is a tenth of it: no alert."""
    short = {"perf_data/startup_pct": 30.0, "perf_data/first_batch_ms": 300.0}
    assert Run("loader_startup").windows(20, short) == []


def noisy(random: np.random.Generator, share: float) -> dict[str, float]:
    """Return a window with a data share, 10 % jitter on all, and 1 % outliers of ten times in times."""

    def jitter() -> float:
        return float(1 + 0.1 * random.standard_normal())

    def outlier() -> float:
        return 10.0 if random.random() < 0.01 else 1.0

    work_ms, wait_ms = 200 * jitter() * outlier(), 200 * share / (100 - share) * jitter() * outlier()
    step_ms = work_ms + wait_ms
    idle = 100 * wait_ms / step_ms
    names = (
        "perf_gpu/sm_active_pct",
        "perf_gpu/tensor_active_pct",
        "perf/mem_bw_pct",
        "perf_gpu0/mem_used_pct",
    )
    return {
        **{name: HEALTHY[name] * jitter() for name in names},
        "perf/data_pct": idle,
        "perf/step_ms": step_ms,
        "perf/samples_per_s": 256e3 / step_ms,
        "perf/gpu_util_pct": min(100.0, 99.0 - idle + float(random.standard_normal())),
        "perf_data/startup_pct": 1.0 * jitter() * outlier(),
        "perf_gpu0/temp_c": 65.0 * jitter(),
    }


@pytest.mark.parametrize("seed", range(5))
def test_no_false_alarm(seed: int) -> None:
    """1 000 healthy windows with jitter and outliers raise nothing, not even a notice."""
    run, random = Run(), np.random.default_rng(seed)
    assert [alert for _ in range(1000) for alert in run.windows(1, noisy(random, 3.0))] == []


def test_a_true_share_is_found_at_once() -> None:
    """12 % of waiting, with noise in work and wait alike, is raised within five windows in 97 runs of 100."""
    found = 0
    for seed in range(200):
        run, random = Run(), np.random.default_rng(seed)
        said = [alert.rule for _ in range(5) for alert in run.windows(1, noisy(random, 12.0))]
        found += "loader_latency" in said
    assert found >= 194
