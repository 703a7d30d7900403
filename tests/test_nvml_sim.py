"""The simulated driver library: what the real pynvml reads from it is the scenario's own arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from nvml_sim import At, Gpu, Process, Scenario, Simulation, integral, mean, presets, value_at
from nvml_sim.asking import handle

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
MOMENTS_S = (0.1, 1.0, 1.31, 2.1, 2.5, 4.0, 9.99)


@pytest.fixture
def sim(simulate: Simulate) -> Iterator[Simulation]:
    """Return an initialised machine with one GPU that changes four times."""
    simulation = simulate(Scenario(gpus=(GPU,), stamps="epoch", stamp_base_s=1.7e9))
    pynvml.nvmlInit()
    yield simulation
    pynvml.nvmlShutdown()


def past(now_s: float, name: str, over_s: float) -> float:
    """Return the mean over the last seconds, as far as there are any."""
    return mean(TIMELINE, name, max(0.0, now_s - over_s), now_s)


def test_identity(sim: Simulation) -> None:
    """Name, UUID, bus, versions and limits are those of the scenario."""
    device = handle()
    assert pynvml.nvmlSystemGetDriverVersion() == "580.95.05"
    assert pynvml.nvmlSystemGetNVMLVersion() == "13.580.95.05"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13000
    assert pynvml.nvmlDeviceGetCount() == 1
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA H200"
    assert pynvml.nvmlDeviceGetUUID(device) == GPU.uuid
    assert pynvml.nvmlDeviceGetArchitecture(device) == pynvml.NVML_DEVICE_ARCH_HOPPER
    assert pynvml.nvmlDeviceGetCudaComputeCapability(device) == (9, 0)
    assert pynvml.nvmlDeviceGetMemoryBusWidth(device) == 6144
    assert [pynvml.nvmlDeviceGetMaxClockInfo(device, clock) for clock in range(4)] == [1980, 1980, 3201, 1980]
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(device) == 700_000
    assert [pynvml.nvmlDeviceGetTemperatureThreshold(device, which) for which in (0, 1)] == [92, 87]
    pci = pynvml.nvmlDeviceGetPciInfo(device)
    assert (pci.domain, pci.bus, pci.device, pci.busId) == (0, 0x18, 0, "00000000:18:00.0")


def test_same_device_by_every_key(sim: Simulation) -> None:
    """A device found by UUID, or by bus in its long or short form, is the one found by index."""
    uuids = {
        pynvml.nvmlDeviceGetUUID(device)
        for device in (
            pynvml.nvmlDeviceGetHandleByUUID(GPU.uuid),
            pynvml.nvmlDeviceGetHandleByPciBusId("00000000:18:00.0"),
            pynvml.nvmlDeviceGetHandleByPciBusId("0000:18:00.0"),
        )
    }
    assert uuids == {GPU.uuid}


def test_unknown_devices(sim: Simulation) -> None:
    """An index, UUID prefix or bus that nothing has is refused as the driver does."""
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(GPU.uuid[:9])
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByPciBusId("00000000:19:00.0")


@pytest.mark.parametrize("now_s", MOMENTS_S)
def test_readings_of_a_moment(sim: Simulation, now_s: float) -> None:
    """Utilisation and power are means over their periods; the rest is what holds now."""
    sim.set_time(now_s)
    device = handle()
    rates = pynvml.nvmlDeviceGetUtilizationRates(device)
    assert rates.gpu == pytest.approx(past(now_s, "util_pct", 1 / 6), abs=0.51)
    assert rates.memory == pytest.approx(past(now_s, "mem_busy_pct", 1 / 6), abs=0.51)
    assert pynvml.nvmlDeviceGetPowerUsage(device) == pytest.approx(1e3 * past(now_s, "power_w", 1), abs=1)
    celsius = value_at(TIMELINE, "temp_c", now_s)
    assert pynvml.nvmlDeviceGetTemperature(device, 0) == celsius
    assert pynvml.nvmlDeviceGetTemperatureV(device, 0) == celsius
    reasons = value_at(TIMELINE, "reasons", now_s)
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(device) == reasons
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device) == reasons
    assert [pynvml.nvmlDeviceGetClockInfo(device, clock) for clock in (0, 1, 2)] == [1755, 1755, 3201]
    received = past(now_s, "pcie_rx_bytes_per_s", 0.02) / 1e3
    assert pynvml.nvmlDeviceGetPcieThroughput(device, 1) == pytest.approx(received, abs=1)


def test_memory_of_both_versions(sim: Simulation) -> None:
    """The old call counts what the driver keeps as used, the newer one shows it apart; both add up."""
    old = pynvml.nvmlDeviceGetMemoryInfo(handle())
    new = pynvml.nvmlDeviceGetMemoryInfo(handle(), version=pynvml.nvmlMemory_v2)
    assert (new.total, new.reserved, new.used) == (GPU.memory_bytes, GPU.reserved_bytes, 12e9)
    assert old.used == 12e9 + GPU.reserved_bytes
    assert old.total == old.used + old.free
    assert new.total == new.used + new.free + new.reserved
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlDeviceGetMemoryInfo(handle(), version=1)


@pytest.mark.parametrize("now_s", [*MOMENTS_S, 0.06, 0.059])
def test_energy_is_the_integral_of_power(sim: Simulation, now_s: float) -> None:
    """Energy is that of the timeline up to the last full 20 ms, the same by call and by field."""
    sim.set_time(now_s)
    until_s = math.floor(now_s * 1000 + 1e-6) // 20 * 0.02
    expected = 7e6 + 1e3 * integral(TIMELINE, "power_w", 0, until_s)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle()) == pytest.approx(expected, abs=1)
    fields = pynvml.nvmlDeviceGetFieldValues(handle(), [83, 191])
    assert [field.value.ullVal for field in fields] == [pytest.approx(expected, abs=1)] * 2


def test_energy_and_mean_power_agree(sim: Simulation) -> None:
    """A second's difference of energy is the mean power of that second."""
    sim.set_time(1.5)
    before = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle())
    sim.advance(1.0)
    used = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle()) - before
    assert used == pytest.approx(pynvml.nvmlDeviceGetPowerUsage(handle()), rel=0.02)


def test_energy_counter_that_is_wrong(simulate: Simulate) -> None:
    """A counter may count too little, and starts from 0 when the driver is loaded anew."""
    gpu = Gpu(timeline=(At(s=0, power_w=100),), energy_base_mj=5e6, energy_scale=0.6, energy_reset_s=4.0)
    sim = simulate(Scenario(gpus=(gpu,)))
    pynvml.nvmlInit()
    sim.set_time(2.0)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle()) == 5e6 + 0.6 * 200e3
    sim.set_time(5.0)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle()) == 0.6 * 100e3


def test_power_of_the_instant(simulate: Simulate) -> None:
    """Where power is no mean it is that of the moment, and fields tell both."""
    sim = simulate(Scenario(gpus=(replace(GPU, power_mean_s=0.0),)))
    pynvml.nvmlInit()
    sim.set_time(2.55)
    assert pynvml.nvmlDeviceGetPowerUsage(handle()) == 655_000
    average, instant = pynvml.nvmlDeviceGetFieldValues(handle(), [185, 186])
    assert average.value.uiVal == pytest.approx(1e3 * past(2.55, "power_w", 1), abs=1)
    assert instant.value.uiVal == 655_000


def test_thermal_counters(sim: Simulation) -> None:
    """The two counters of thermal slowdown are the nanoseconds for which their bits were set."""
    sim.set_time(5.0)
    software, hardware, unknown = pynvml.nvmlDeviceGetFieldValues(handle(), [269, 270, 9999])
    assert [software.nvmlReturn, hardware.nvmlReturn, unknown.nvmlReturn] == [0, 0, 3]
    assert software.value.ullVal == pytest.approx((3.9 - 1.3) * 1e9, abs=2)
    assert hardware.value.ullVal == pytest.approx((3.9 - 2.05) * 1e9, abs=2)


def test_byte_counters_wrap(sim: Simulation) -> None:
    """The bytes over PCIe are counted in 32 bits."""
    sim.set_time(5.0)
    sent, received = pynvml.nvmlDeviceGetFieldValues(handle(), [197, (198, 0xFFFFFFFF)])
    assert sent.value.uiVal == 1_000_000_000
    assert received.value.uiVal == round(integral(TIMELINE, "pcie_rx_bytes_per_s", 0, 5)) % 2**32


def test_processes(simulate: Simulate) -> None:
    """Processes and their memory are listed; without any the list is empty."""
    simulate(Scenario(gpus=(replace(GPU, processes=(Process(pid=4321, memory_bytes=3 * 2**30),)),)))
    pynvml.nvmlInit()
    (found,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle())
    assert (found.pid, found.usedGpuMemory, found.gpuInstanceId) == (4321, 3 * 2**30, 0xFFFFFFFF)
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle()) == []


def test_what_happens_later(sim: Simulation) -> None:
    """A point added while the simulation runs holds from its moment on, and none may lie in the past."""
    sim.set_time(20.0)
    sim.append(At(s=20.0, temp_c=91.0))
    assert pynvml.nvmlDeviceGetTemperature(handle(), 0) == 91
    assert pynvml.nvmlDeviceGetClockInfo(handle(), 2) == 3201
    with pytest.raises(ValueError, match="order of time"):
        sim.append(At(s=19.0, temp_c=40.0))
