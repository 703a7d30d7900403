"""The simulated driver library: machines that differ, in age, order and kind."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from nvml_sim import Code, Scenario, Simulation, presets
from nvml_sim.asking import code_of, handle, utilisation

if TYPE_CHECKING:
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]
pynvml: Any = pytest.importorskip("pynvml")


def started(simulate: Simulate, scenario: Scenario) -> Simulation:
    """Return an initialised simulation."""
    simulation = simulate(scenario)
    pynvml.nvmlInit()
    return simulation


def test_old_driver(simulate: Simulate) -> None:
    """What an old driver does not have is not found; the rest works, under its older names."""
    started(simulate, presets.old_driver())
    device = handle()
    for call in (
        lambda: pynvml.nvmlGpmQueryDeviceSupport(device),
        pynvml.nvmlGpmSampleAlloc,
        lambda: pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2),
        lambda: pynvml.nvmlDeviceGetTemperatureV(device, 0),
        lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(device),
    ):
        assert code_of(call) == Code.FUNCTION_NOT_FOUND
    with pytest.raises(pynvml.NVMLLibraryMismatchError):
        pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    assert pynvml.nvmlDeviceGetMemoryInfo(device).used == 12e9
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device) == 0
    assert [field.nvmlReturn for field in pynvml.nvmlDeviceGetFieldValues(device, [83, 269])] == [0, 3]


def test_gpu_without_gpm(simulate: Simulate) -> None:
    """A GPU before Hopper says that it has no GPM, and refuses a sample."""
    started(simulate, presets.rtx_4090())
    device = handle()
    assert pynvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice == 0
    assert code_of(lambda: pynvml.nvmlGpmSampleGet(device, pynvml.nvmlGpmSampleAlloc())) == Code.NOT_SUPPORTED
    assert code_of(lambda: pynvml.nvmlDeviceGetMigMode(device)) == Code.NOT_SUPPORTED


@pytest.mark.parametrize("code", [Code.NOT_SUPPORTED, Code.UNKNOWN])
def test_wsl(simulate: Simulate, code: Code) -> None:
    """Under WSL memory can be read, utilisation cannot."""
    started(simulate, presets.wsl(code))
    device = handle()
    assert code_of(lambda: utilisation(0)) == code
    assert pynvml.nvmlDeviceGetMemoryInfo(device).used == 12e9


def test_integrated(simulate: Simulate) -> None:
    """A GPU in the machine's own memory is busy while its memory never is, and has no bus of its own."""
    started(simulate, presets.integrated())
    device = handle()
    rates = pynvml.nvmlDeviceGetUtilizationRates(device)
    assert (rates.gpu, rates.memory) == (92, 0)
    assert code_of(lambda: pynvml.nvmlDeviceGetMemoryBusWidth(device)) == Code.NOT_SUPPORTED
    assert code_of(lambda: pynvml.nvmlDeviceGetMemoryInfo(device)) == Code.NOT_SUPPORTED
    assert code_of(lambda: pynvml.nvmlDeviceGetMaxClockInfo(device, 2)) == Code.NOT_SUPPORTED


def test_order_of_the_driver(simulate: Simulate) -> None:
    """The driver's order may not be that of CUDA; a UUID finds the same device either way."""
    started(simulate, presets.shuffled())
    assert [utilisation(index) for index in range(4)] == [20, 40, 10, 30]
    for gpu, expected in zip(presets.shuffled().gpus, (10, 20, 30, 40), strict=True):
        for found in (
            pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid),
            pynvml.nvmlDeviceGetHandleByPciBusId(gpu.bus),
        ):
            assert pynvml.nvmlDeviceGetUtilizationRates(found).gpu == expected
            assert pynvml.nvmlDeviceGetIndex(found) == gpu.index


def test_instances(simulate: Simulate) -> None:
    """Instances are found by slot, with holes, and by UUID, and lead to their GPU."""
    started(simulate, presets.divided())
    gpu = handle()
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7
    for hole in (1, 3, 4, 6):
        assert code_of(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, hole)) == Code.NOT_FOUND
    found = {slot: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot) for slot in (0, 2, 5)}
    ours = pynvml.nvmlDeviceGetHandleByUUID(presets.MIG_UUID)
    assert pynvml.nvmlDeviceGetUUID(found[2]) == pynvml.nvmlDeviceGetUUID(ours) == presets.MIG_UUID
    assert pynvml.nvmlDeviceGetGpuInstanceId(ours) == 9
    assert pynvml.nvmlDeviceIsMigDeviceHandle(ours).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(gpu).value == 0
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(ours)
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(gpu)


def test_readings_of_an_instance(simulate: Simulate) -> None:
    """An instance has memory and GPM of its own; it has no utilisation, nor has its GPU, and no power."""
    sim = started(simulate, presets.divided())
    gpu, ours = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByUUID(presets.MIG_UUID)
    assert pynvml.nvmlDeviceGetMemoryInfo(ours).used == 3e9
    for device in (gpu, ours):
        assert code_of(partial(pynvml.nvmlDeviceGetUtilizationRates, device)) == Code.NOT_SUPPORTED
        assert code_of(partial(pynvml.nvmlDeviceGetSamples, device, 1, 0)) == Code.NOT_SUPPORTED
    assert code_of(lambda: pynvml.nvmlDeviceGetPowerUsage(ours)) == Code.INVALID_ARGUMENT
    asked = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=1)
    asked.metrics[0].metricId = 10
    asked.sample1, asked.sample2 = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(ours, asked.sample1)
    sim.set_time(1.0)
    pynvml.nvmlGpmMigSampleGet(gpu, 9, asked.sample2)
    pynvml.nvmlGpmMetricsGet(asked)
    assert asked.metrics[0].value == pytest.approx(12)


def test_divided_gpu_that_tells_of_all_its_tenants(simulate: Simulate) -> None:
    """A divided GPU may have a utilisation after all, which is not that of the instance."""
    scenario = presets.divided()
    (gpu,) = scenario.gpus
    started(simulate, replace(scenario, gpus=(replace(gpu, mig_parent_util=True),)))
    ours = pynvml.nvmlDeviceGetHandleByUUID(presets.MIG_UUID)
    assert utilisation(0) == 95
    assert code_of(lambda: pynvml.nvmlDeviceGetUtilizationRates(ours)) == Code.NOT_SUPPORTED
