"""What a window's utilisation is the mean of: how many values, and between what they lie."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from gpu_parts import Readings, stamped
from nvml_sim import At, Code, Fault, Gpu, Scenario, duty_cycle, presets

from trackperf.timing.windows import Totals, Window

if TYPE_CHECKING:
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]
pytest.importorskip("pynvml")

UTIL = ("perf/gpu_util_pct", "perf_gpu/util_min_pct", "perf_gpu/util_max_pct", "perf_gpu/util_samples")
WORK, REST = At(s=0, util_pct=100.0), At(s=0, util_pct=0.0)


def told(values: dict[str, float]) -> tuple[float, ...]:
    """Return a window's utilisation, the least and the most that it is the mean of, and how many."""
    return tuple(values[key] for key in UTIL)


@pytest.mark.parametrize("sampled", [True, False])
def test_short_bursts(simulate: Simulate, sampled: bool) -> None:
    """Busy for 80 of every 100 ms: a mean of 80, of many values that are all about 80, none 0 or 100."""
    timeline = duty_cycle(WORK, REST, busy_s=0.08, idle_s=0.02, until_s=12)
    scenario = stamped(Scenario(gpus=(Gpu(timeline=timeline),)))
    if not sampled:
        scenario = scenario.with_faults(Fault(function="nvmlDeviceGetSamples", code=Code.NOT_SUPPORTED))
    run = Readings(simulate, scenario)
    for _ in range(5):
        mean, least, most, samples = told(run.window(polls=0.25))
        assert mean == pytest.approx(80, abs=5)
        assert 70 <= least <= mean <= most <= 90
        # The driver keeps six a second, of which one is cut by each end; without them there are the polls.
        assert samples == pytest.approx(13 if sampled else 8, abs=2)


def test_long_bursts(simulate: Simulate) -> None:
    """Busy for a second and idle for a second: the mean says 50, and the extremes that it never was."""
    timeline = duty_cycle(WORK, REST, busy_s=1.0, idle_s=1.0, until_s=12)
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),))))
    run.window()
    mean, least, most, _ = told(run.window())
    assert mean == pytest.approx(50, abs=1)
    assert (least, most) == (0, 100)


def test_values_that_nobody_took(simulate: Simulate) -> None:
    """A window of four minutes counts every value of the driver's, and no extreme is averaged away."""
    timeline = (At(s=0, util_pct=60.0), At(s=5.0, util_pct=10.0), At(s=5.4, util_pct=60.0))
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),))))
    mean, least, most, samples = told(run.window(240.0))
    assert mean == pytest.approx(60, abs=0.2)
    assert (least, most) == (10, 60)
    assert samples == pytest.approx(240 * 6, abs=5)


def test_several_gpus(simulate: Simulate) -> None:
    """Of two GPUs the extremes are over both, and their values are counted together."""
    run = Readings(simulate, stamped(presets.two_gpus()))
    run.window()
    mean, least, most, samples = told(run.window())
    assert (mean, least, most) == (15, 10, 20)
    assert samples == pytest.approx(26, abs=4)


def test_a_gpu_that_is_lost(simulate: Simulate) -> None:
    """A GPU without a mean has no part in the extremes, whatever it did before."""
    run = Readings(simulate, stamped(presets.two_gpus()))
    run.window()
    run.sim.inject(Fault(function="*", code=Code.GPU_IS_LOST, gpu=0, start_s=2.1))
    run.window()
    mean, least, most, samples = told(run.window())
    assert (mean, least, most) == (20, 20, 20)
    assert samples == pytest.approx(13, abs=2)


def test_absent_with_the_mean(simulate: Simulate) -> None:
    """Where there is no mean there are no extremes and no number; they have its reason; and it comes back."""
    gone = [
        Fault(function=function, code=Code.UNKNOWN, start_s=4.0, end_s=9.0)
        for function in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetSamples")
    ]
    run = Readings(simulate, stamped(presets.h200().with_faults(*gone)))
    assert told(run.window())[:3] == (92, 92, 92)
    run.window(2.2)
    run.window()
    assert not set(UTIL) & run.window().keys()
    absent = run.sampler.absent()
    assert {absent[key] for key in UTIL} == {absent["perf_gpu/util_pct"]}
    for _ in range(4):
        values = run.window()
    assert told(values)[:3] == (92, 92, 92)
    assert not set(UTIL) & run.sampler.absent().keys()


def test_a_point_of_several_windows() -> None:
    """Merged windows have the least of the leasts, the most of the mosts, and all values counted."""
    merged = None
    for place, (least, most, samples) in enumerate(
        [(30.0, 80.0, 12.0), (10.0, 50.0, 6.0), (40.0, 95.0, 24.0)]
    ):
        begin_ns = place * 2 * 10**9
        window = Window(phase="train", start_ns=begin_ns, end_ns=begin_ns + 2 * 10**9, totals=Totals())
        window.read(dict(zip(UTIL, (60.0, least, most, samples), strict=True)))
        if merged is None:
            merged = window
        else:
            merged.merge(window)
    assert merged is not None
    assert told(merged.reading_values()) == pytest.approx((60.0, 10.0, 95.0, 42.0))


def test_a_slice_has_none(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A MIG slice has no utilisation, so there is nothing that it lies between either."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", presets.MIG_UUID)
    scenario = presets.divided()
    gpu = replace(scenario.gpus[0], mig_parent_util=True)
    run = Readings(simulate, stamped(replace(scenario, gpus=(gpu,))))
    assert not set(UTIL) & run.window().keys()
    assert run.sampler.absent()["perf_gpu/util_min_pct"].startswith("MIG")
