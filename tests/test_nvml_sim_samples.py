"""The simulated driver library: samples of the driver and of GPM are the scenario's own arithmetic."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import pytest
from nvml_sim import At, Gpu, Scenario, Simulation, duty_cycle, mean, presets
from nvml_sim.asking import gpm_between, handle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]
pynvml: Any = pytest.importorskip("pynvml")

TIMELINE = (
    presets.BUSY,
    At(s=1.3, util_pct=10.0, mem_busy_pct=3.0, power_w=90.0, reasons=0x24, dram_pct=5.0, sm_active_pct=8.0),
    At(s=2.05, util_pct=100.0, mem_busy_pct=61.0, power_w=655.0, reasons=0x60, dram_pct=83.0, temp_c=84.0),
    At(s=3.9, util_pct=0.0, power_w=75.0, reasons=0x1, used_bytes=20e9, pcie_rx_bytes_per_s=25e9),
)
GPU = Gpu(timeline=TIMELINE, reserved_bytes=500 * 2**20, energy_base_mj=7e6)


@pytest.fixture
def sim(simulate: Simulate) -> Iterator[Simulation]:
    """Return an initialised machine with one GPU that changes four times."""
    simulation = simulate(Scenario(gpus=(GPU,), stamps="epoch", stamp_base_s=1.7e9))
    pynvml.nvmlInit()
    yield simulation
    pynvml.nvmlShutdown()


@pytest.mark.parametrize(("kind", "name"), [(0, "power_w"), (1, "util_pct"), (2, "mem_busy_pct")])
def test_samples_are_the_means_of_their_periods(sim: Simulation, kind: int, name: str) -> None:
    """Each sixth of a second leaves the mean over itself, stamped at its end."""
    sim.set_time(4.0)
    value_type, samples = pynvml.nvmlDeviceGetSamples(handle(), kind, 0)
    assert value_type == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    assert len(samples) == 24
    for number, sample in enumerate(samples, start=1):
        expected = mean(TIMELINE, name, (number - 1) / 6, number / 6) * (1000 if kind == 0 else 1)
        assert sample.sampleValue.uiVal == pytest.approx(expected, abs=0.51)
        assert sample.timeStamp == pytest.approx(1.7e15 + number * 1e6 / 6, abs=1)


def test_samples_of_clocks(sim: Simulation) -> None:
    """The clocks of SMs and memory are sampled as well, the encoder is not."""
    sim.set_time(1.0)
    values = [pynvml.nvmlDeviceGetSamples(handle(), kind, 0)[1][0].sampleValue.uiVal for kind in (5, 6)]
    assert values == [1755, 3201]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetSamples(handle(), 3, 0)


def test_only_newer_samples(sim: Simulation) -> None:
    """Samples after a stamp are those not seen; when there is none the call says so."""
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetSamples(handle(), 1, 0)
    sim.set_time(1.0)
    _, samples = pynvml.nvmlDeviceGetSamples(handle(), 1, 0)
    newest = samples[-1].timeStamp
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetSamples(handle(), 1, newest)
    sim.set_time(1.4)
    _, samples = pynvml.nvmlDeviceGetSamples(handle(), 1, newest)
    assert [sample.timeStamp - newest for sample in samples] == [
        pytest.approx(166_667, abs=1),
        pytest.approx(333_333, abs=1),
    ]


@pytest.mark.parametrize(
    ("ring", "expected"),
    [(False, [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]), (True, [10, 11, 12, 13, 4, 5, 6, 7, 8, 9])],
)
def test_sample_buffer_is_bounded(simulate: Simulate, ring: bool, expected: list[int]) -> None:
    """The buffer keeps the newest samples only, where told so not in the order of time."""
    sim = simulate(Scenario(gpus=(GPU,), sample_buffer=10, sample_ring=ring, stamp_base_s=100.0))
    pynvml.nvmlInit()
    sim.set_time(13 / 6)
    _, samples = pynvml.nvmlDeviceGetSamples(handle(), 1, 0)
    stamps = [round((sample.timeStamp / 1e6 - 100) * 6) for sample in samples]
    assert stamps == expected


def test_idle_gpu_has_no_samples(simulate: Simulate) -> None:
    """Where idle periods leave no samples, only the busy ones are there."""
    timeline = (At(s=0, util_pct=50), At(s=1, util_pct=0))
    sim = simulate(Scenario(gpus=(Gpu(timeline=timeline),), sample_idle=False, stamp_base_s=0))
    pynvml.nvmlInit()
    sim.set_time(3.0)
    _, samples = pynvml.nvmlDeviceGetSamples(handle(), 1, 0)
    assert [sample.sampleValue.uiVal for sample in samples] == [50] * 6
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetSamples(handle(), 1, samples[-1].timeStamp)


@pytest.mark.parametrize(("stamps", "clock"), [("boot", time.monotonic), ("epoch", time.time)])
def test_clock_of_stamps(simulate: Simulate, stamps: str, clock: Any) -> None:
    """Stamps count from the machine's start or from the epoch."""
    sim = simulate(Scenario(gpus=(GPU,), stamps=stamps))
    pynvml.nvmlInit()
    sim.set_time(1.0)
    _, samples = pynvml.nvmlDeviceGetSamples(handle(), 1, 0)
    assert samples[-1].timeStamp / 1e6 == pytest.approx(clock() + 1.0, abs=60)


def test_gpm_is_the_difference_of_integrals(sim: Simulation) -> None:
    """Each metric is the mean between the two samples, with bytes in MiB a second."""
    names = {
        1: "util_pct", 2: "sm_active_pct", 3: "sm_occupancy_pct", 5: "tensor_active_pct", 10: "dram_pct",
        20: "pcie_tx_bytes_per_s", 21: "pcie_rx_bytes_per_s",
    }  # fmt: skip
    metrics = gpm_between(sim, 0.7, 4.4, *names)
    for (code, value), (number, name) in zip(metrics, names.items(), strict=True):
        assert code == 0
        scale = 2**20 if number >= 20 else 1
        assert value == pytest.approx(mean(TIMELINE, name, 0.7, 4.4) / scale, rel=1e-9)


def test_gpm_within_one_refresh(sim: Simulation) -> None:
    """Two samples of one refresh of the counters make no number; a metric that is not there says so."""
    (within, value), (unknown, _) = gpm_between(sim, 1.41, 1.49, 10, 400)
    assert within == 0
    assert math.isnan(value)
    assert unknown == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_gpm_samples_are_counted(sim: Simulation) -> None:
    """A sample that is not freed is seen."""
    before = sim.gpm_samples
    sample = pynvml.nvmlGpmSampleAlloc()
    assert sim.gpm_samples == before + 1
    pynvml.nvmlGpmSampleFree(sample)
    assert sim.gpm_samples == before


def test_gpm_touches_only_the_metrics_asked_for(sim: Simulation) -> None:
    """What lies behind the metrics asked for is left alone: older callers have less room there."""
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics, asked.metrics[1].value = 1, 1, 123.0
    asked.metrics[0].metricId = 10
    asked.sample1, asked.sample2 = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpmMetricsGet(asked)
    for sample, s in ((asked.sample1, 1.0), (asked.sample2, 2.0)):
        sim.set_time(s)
        pynvml.nvmlGpmSampleGet(handle(), sample)
    pynvml.nvmlGpmMetricsGet(asked)
    assert (asked.metrics[1].value, asked.metrics[1].metricId) == (123.0, 0)
    pynvml.nvmlGpmSampleFree(asked.sample1)
    pynvml.nvmlGpmSampleFree(asked.sample2)


def test_duty_cycle(simulate: Simulate) -> None:
    """A GPU that works 80 of every 100 ms has samples of 80 % on average, however it is asked."""
    busy, idle = At(s=0, util_pct=100.0), At(s=0, util_pct=0.0)
    timeline = duty_cycle(busy, idle, busy_s=0.08, idle_s=0.02, until_s=10)
    sim = simulate(Scenario(gpus=(Gpu(timeline=timeline),)))
    pynvml.nvmlInit()
    sim.set_time(10.0)
    _, samples = pynvml.nvmlDeviceGetSamples(handle(), 1, 0)
    assert sum(sample.sampleValue.uiVal for sample in samples) / len(samples) == pytest.approx(80, abs=0.5)
    assert gpm_between(sim, 2, 7, 1)[0][1] == pytest.approx(80)
