"""The run's GPUs together: which they are, and what their means are."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_parts import Readings, as_torch, messages, stamped
from nvml_sim import At, Code, Fault, Gpu, Scenario, duty_cycle, mean, presets

if TYPE_CHECKING:
    from nvml_sim.fixtures import Simulate

    from trackperf.devices.mapping import TorchDevice

pytest_plugins = ["nvml_sim.fixtures"]
pynvml: Any = pytest.importorskip("pynvml")


def test_memory_busy_is_not_memory_used(simulate: Simulate) -> None:
    """7 % of the time is 7, whatever is occupied; what is occupied is a share and a size of its own."""
    gpu = Gpu(memory_bytes=25_757_220_864, timeline=(At(s=0, mem_busy_pct=7.0, used_bytes=12_878_610_432.0),))
    values = Readings(simulate, stamped(Scenario(gpus=(gpu,)))).window()
    assert values["perf/mem_busy_pct"] == 7
    assert values["perf_gpu/mem_used_pct"] == pytest.approx(50)
    assert values["perf_gpu/mem_used_gib"] * 1024 == pytest.approx(12_282)


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("polls", [0.5, 0.25, 0.1, 0.37])
def test_duty_cycle(simulate: Simulate, sampled: bool, polls: float) -> None:
    """A GPU busy for 80 of every 100 ms is 80 % utilised, whenever it is looked at."""
    timeline = duty_cycle(
        At(s=0, util_pct=100.0), At(s=0, util_pct=0.0), busy_s=0.08, idle_s=0.02, until_s=12
    )
    scenario = stamped(Scenario(gpus=(Gpu(timeline=timeline),)))
    if not sampled:
        scenario = scenario.with_faults(Fault(function="nvmlDeviceGetSamples", code=Code.NOT_SUPPORTED))
    run = Readings(simulate, scenario)
    for _ in range(5):
        assert run.window(polls=polls)["perf/gpu_util_pct"] == pytest.approx(80, abs=5)


def test_burst_between_polls(simulate: Simulate) -> None:
    """Half a second of work that no poll sees is in the window that it happened in, and in no other."""
    timeline = (At(s=0, util_pct=0.0), At(s=2.5, util_pct=100.0), At(s=3.0, util_pct=0.0))
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),))))
    windows = [run.window(polls=2.0)["perf/gpu_util_pct"] for _ in range(3)]
    assert windows == [pytest.approx(value, abs=1) for value in (0, 25, 0)]


def test_windows_of_any_length(simulate: Simulate) -> None:
    """Windows from 0.3 s to 90 s, also longer than the driver's buffer, have the mean of what happened."""
    work = At(s=0, util_pct=90.0, mem_busy_pct=50.0, dram_pct=60.0, power_w=500.0, temp_c=70.0)
    rest = At(s=0, util_pct=10.0, mem_busy_pct=5.0, dram_pct=4.0, power_w=100.0, temp_c=50.0)
    timeline = duty_cycle(work, rest, busy_s=7.0, idle_s=4.0, until_s=130.0)
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),))))
    begin_s = 0.0
    for seconds in (2.0, 0.3, 1.7, 90.0, 9.0, 0.5):
        values = run.window(seconds)
        expected = [
            mean(timeline, name, begin_s, begin_s + seconds)
            for name in ("util_pct", "mem_busy_pct", "dram_pct")
        ]
        got = [values[f"perf/{name}"] for name in ("gpu_util_pct", "mem_busy_pct", "mem_bw_pct")]
        assert got == [pytest.approx(value, abs=3.0) for value in expected]
        begin_s += seconds


def test_work_that_polls_never_see(simulate: Simulate) -> None:
    """Work in the same 0.2 s of each second is told in full, in a window longer than the driver's buffer."""
    timeline = duty_cycle(
        At(s=0.3, util_pct=100.0), At(s=0, util_pct=0.0), busy_s=0.2, idle_s=0.8, until_s=62
    )
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),))))
    assert run.window(60.0, polls=1.0)["perf/gpu_util_pct"] == pytest.approx(20, abs=1)


def test_windows_that_nobody_read(simulate: Simulate) -> None:
    """A window is of its own time only, though none was read for a minute before it."""
    timeline = (At(s=0, util_pct=100.0, dram_pct=80.0), At(s=60, util_pct=20.0, dram_pct=10.0))
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),))))
    run.window(2.0)
    for _ in range(120):
        run.sampler.poll()
        run.sim.advance(0.5)
    begin_ns = run.clock()
    run.sim.advance(2.0)
    values = run.sampler.read(begin_ns, run.clock())
    assert values["perf/gpu_util_pct"] == pytest.approx(20, abs=1)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [10, 20, 30, 40]),
        ("2,3", [30, 40]),
        ("3,1", [40, 20]),
        ("GPU-cccccccc-cccc-cccc-cccc-cccccccccccc", [30]),
        ("GPU-c", [30]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [10]),
        ("2,2", []),
    ],
)
def test_visible_devices(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[float]
) -> None:
    """Without torch the run's GPUs are those of `CUDA_VISIBLE_DEVICES`, in its order."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    run = Readings(simulate, stamped(presets.four_gpus()))
    values = run.window()
    assert [values[f"perf_gpu{index}/util_pct"] for index in range(len(expected))] == expected
    assert not any(key.startswith(f"perf_gpu{len(expected)}/") for key in values)
    assert bool(values) is bool(expected)
    assert ("perf/gpu_util_pct" in run.sampler.absent()) is not bool(expected)


def test_shuffled_order(simulate: Simulate) -> None:
    """The devices of torch are found by UUID, though the driver counts them in another order."""
    scenario = stamped(presets.shuffled())
    torch = [as_torch(gpu, index) for index, gpu in enumerate(scenario.gpus)]
    run = Readings(simulate, scenario, rank_devices=lambda: torch)
    values = run.window()
    assert [values[f"perf_gpu{index}/util_pct"] for index in range(4)] == [10, 20, 30, 40]
    assert [facts.match for facts in run.sampler.describe()] == ["uuid"] * 4


def test_several_gpus_of_one_process(simulate: Simulate) -> None:
    """A process that comes to use a second GPU has both from then on, the first under the same number."""
    scenario = stamped(presets.two_gpus())
    first, second = (as_torch(gpu, index) for index, gpu in enumerate(scenario.gpus))
    own: list[TorchDevice] = [first]
    run = Readings(simulate, scenario, rank_devices=lambda: own)
    assert run.window()["perf/gpu_util_pct"] == 10
    own[:] = [first, second]
    values = run.window()
    assert (values["perf_gpu0/util_pct"], values["perf_gpu1/util_pct"]) == (10, 20)
    assert values["perf/gpu_util_pct"] == 15
    own[:] = [second]
    assert run.window()["perf/gpu_util_pct"] == 15


def test_other_gpus_are_not_read(simulate: Simulate) -> None:
    """A GPU that is not the run's is not even asked."""
    scenario = stamped(presets.four_gpus())
    run = Readings(simulate, scenario, rank_devices=lambda: [as_torch(scenario.gpus[3], 3)])
    run.sim.inject(Fault(function="*", code=Code.GPU_IS_LOST, gpu=0))
    values = run.window()
    assert values["perf/gpu_util_pct"] == values["perf_gpu0/util_pct"] == 40
    assert not any(key.startswith("perf_gpu1/") for key in values)


@pytest.mark.parametrize("devices", [[2, 0], ["GPU-cccccccc-cccc-cccc-cccc-cccccccccccc", 0]])
def test_devices_as_asked_for(simulate: Simulate, devices: list[str | int]) -> None:
    """UUIDs and the driver's indices override what the process would use, in their order."""
    run = Readings(simulate, stamped(presets.four_gpus()), devices=devices, rank_devices=list)
    values = run.window()
    assert (values["perf_gpu0/util_pct"], values["perf_gpu1/util_pct"]) == (30, 10)
    assert [facts.match for facts in run.sampler.describe()] == ["given"] * 2


def test_what_is_never_asked(simulate: Simulate) -> None:
    """Neither process lists nor the PCIe call of 20 ms is made, and polls are few."""
    run = Readings(simulate, stamped(presets.h200()))
    for _ in range(5):
        run.window(polls=run.sampler.period_s)
    for function in (
        "nvmlDeviceGetPcieThroughput",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
    ):
        assert run.sim.calls(function) == 0
    assert run.sim.calls("nvmlDeviceGetPowerUsage") <= 16
    assert run.sim.calls("nvmlDeviceGetUtilizationRates") <= 4 * 10


def test_description(simulate: Simulate) -> None:
    """What is said of a device is what it is."""
    run = Readings(simulate, stamped(presets.h200()))
    run.window()
    facts = run.facts()
    assert (facts.index, facts.name, facts.uuid) == (0, "NVIDIA H200", presets.H200.uuid)
    assert (facts.compute_capability, facts.driver, facts.match) == ("9.0", "580.95.05", "index")
    assert facts.memory_gib == pytest.approx(140.4, abs=0.01)
    assert facts.peak_bandwidth_gb_s == pytest.approx(4916.7, abs=0.1)
    assert (facts.datasheet_gb_s, facts.peak_remark, facts.gpm, facts.mig) == (4800, "", True, False)
    assert {counter.state for counter in facts.counters.values()} == {"ok"}


def test_peak_that_is_not_the_datasheets(simulate: Simulate, caplog: pytest.LogCaptureFixture) -> None:
    """A bus width that does not go with the name is said once."""
    gpu = replace(presets.H200, bus_width_bits=8192)
    run = Readings(simulate, stamped(Scenario(gpus=(gpu,))))
    for _ in range(3):
        run.window()
    assert len(messages(caplog, "4800 GB/s", level=logging.WARNING)) == 1
    assert run.facts().peak_remark


def test_everything_is_given_back(simulate: Simulate) -> None:
    """After the end no sample is left allocated, and the library is shut down."""
    run = Readings(simulate, stamped(presets.two_gpus()))
    before = run.sim.gpm_samples
    run.window()
    assert run.sim.gpm_samples == before + 4
    run.sampler.close()
    run.sampler.close()
    assert run.sim.gpm_samples == before
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
