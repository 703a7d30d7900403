"""Activity and bandwidth between the ends of windows."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, cast

import pytest
from gpu_parts import Readings, messages, stamped
from nvml_sim import At, Code, Fault, Gpu, Scenario, mean, presets

from trackperf.devices.gpm import GpmMeter

if TYPE_CHECKING:
    from nvml_sim.fixtures import Simulate

    from trackperf.devices.nvml import Nvml

pytest_plugins = ["nvml_sim.fixtures"]
pytest.importorskip("pynvml")

BANDWIDTH = "perf/mem_bw_pct"


class FakeDriver:
    """A driver whose samples are numbered in order, and whose metrics are told beforehand."""

    def __init__(self, metrics: list[list[float]]) -> None:
        self.pairs: list[tuple[int, int]] = []
        self._metrics = iter(metrics)
        self._number = 0

    def has_gpm(self, handle: str) -> bool:
        """Return that there are such counters."""
        return bool(handle)

    def gpm_alloc(self) -> list[int]:
        """Return room for a number."""
        return []

    def gpm_take(self, handle: str, sample: list[int], *, is_slice: bool) -> None:
        """Number a sample."""
        sample[:] = [self._number]
        self._number += 1

    def gpm_metrics(self, first: list[int], second: list[int], ids: list[int]) -> list[float]:
        """Note which samples are compared."""
        self.pairs.append((first[0], second[0]))
        return next(self._metrics)


def test_no_time_is_blind(simulate: Simulate) -> None:
    """A burst of 100 ms is in the bandwidth of its window, though nobody looked just then."""
    timeline = (At(s=0, dram_pct=10.0), At(s=3.1, dram_pct=90.0), At(s=3.2, dram_pct=10.0))
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),))))
    values = [run.window()[BANDWIDTH] for _ in range(3)]
    assert values == [pytest.approx(value) for value in (10, 14, 10)]


def test_windows_too_short_for_a_sample(simulate: Simulate) -> None:
    """A window under 200 ms has no bandwidth of its own; its time is in that of the next one."""
    timeline = (At(s=0, dram_pct=10.0), At(s=2, dram_pct=90.0), At(s=2.1, dram_pct=10.0))
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),))))
    run.window()
    assert BANDWIDTH not in run.window(0.1)
    assert run.window(1.9)[BANDWIDTH] == pytest.approx(mean(timeline, "dram_pct", 2.0, 4.0))


def test_not_a_number(simulate: Simulate) -> None:
    """Counters that were not refreshed since the last sample make no value, and lose no time."""
    timeline = (At(s=0, dram_pct=10.0), At(s=2, dram_pct=70.0), At(s=3, dram_pct=30.0))
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),), gpm_refresh_s=1.0)))
    run.window()
    assert BANDWIDTH not in run.window(0.5)
    assert run.window(1.5)[BANDWIDTH] == pytest.approx(50.0)


def test_sample_is_kept_until_it_serves() -> None:
    """A pair without a single number leaves the older sample in place, as the start of the next pair."""
    driver = FakeDriver([[math.nan] * 6, [50.0] * 6, [60.0] * 6])
    meter = GpmMeter(cast("Nvml", driver), "GPU 0", is_slice=False)
    for second in range(4):
        meter.advance(second * 10**9, "device", window_ends=True)
    assert driver.pairs == [(0, 1), (0, 2), (2, 3)]
    assert meter.take(0, 2 * 10**9, 1.0)["mem_bw_pct"] == 50
    assert meter.take(2 * 10**9, 3 * 10**9, 1.0)["mem_bw_pct"] == 60


def test_permission_goes_and_comes_back(simulate: Simulate, caplog: pytest.LogCaptureFixture) -> None:
    """When permission is taken away after a while there is a gap; afterwards values are right at once."""
    caplog.set_level(logging.INFO)
    timeline = (At(s=0, dram_pct=20.0), At(s=10, dram_pct=80.0), At(s=22, dram_pct=40.0))
    denied = Fault(function="nvmlGpmSampleGet", code=Code.NO_PERMISSION, start_s=9.5, end_s=21.0)
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),), faults=(denied,))))
    values = [run.window().get(BANDWIDTH) for _ in range(20)]
    assert values[:4] == [20.0] * 4
    assert values[4:10] == [None] * 6
    assert values[-5:] == [pytest.approx(40.0)] * 5
    assert {round(value) for value in values if value is not None} == {20, 40}
    assert len(messages(caplog, "GPM", level=logging.WARNING)) == 1
    assert len(messages(caplog, "GPM", "answers again")) == 1


def test_long_windows_are_sampled_in_between(simulate: Simulate) -> None:
    """In a window of minutes no sample is held for more than half a minute or so."""
    run = Readings(simulate, stamped(presets.h200()))
    run.window()
    before = run.sim.calls("nvmlGpmSampleGet")
    assert run.window(120.0)[BANDWIDTH] == pytest.approx(37)
    assert run.sim.calls("nvmlGpmSampleGet") - before == 4


def test_one_metric_fails(simulate: Simulate) -> None:
    """A metric that the device does not have takes nothing from the others."""
    fault = Fault(function="nvmlGpmMetricsGet", part=20, code=Code.NOT_SUPPORTED)
    run = Readings(simulate, stamped(presets.h200().with_faults(fault)))
    values = run.window()
    assert "perf_gpu/pcie_tx_mb_s" not in values
    assert values["perf_gpu/pcie_rx_mb_s"] == pytest.approx(1500)
    assert run.sampler.absent().keys() >= {"perf_gpu/pcie_tx_mb_s"}


def test_before_hopper(simulate: Simulate, caplog: pytest.LogCaptureFixture) -> None:
    """On an older GPU the time in which memory was busy is there, bandwidth is not, and why is told once."""
    caplog.set_level(logging.INFO)
    run = Readings(simulate, stamped(presets.a100()))
    values = [run.window() for _ in range(3)][-1]
    assert values["perf/mem_busy_pct"] == 40
    assert BANDWIDTH not in values
    assert run.sampler.absent()[BANDWIDTH] == "GPM needs Hopper or newer"
    assert len(messages(caplog, "GPM needs Hopper or newer")) == 1
    assert run.sim.calls("nvmlGpmQueryDeviceSupport") == 1
    assert run.sim.calls("nvmlGpmSampleGet") == 0
    assert not run.facts().gpm
