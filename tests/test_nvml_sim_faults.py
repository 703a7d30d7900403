"""The simulated driver library: what goes wrong in it, and what that leaves alone."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from nvml_sim import Code, Fault, Garbage, Scenario, Simulation, presets
from nvml_sim.asking import code_of, gpm_between, handle, utilisation

if TYPE_CHECKING:
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]
pynvml: Any = pytest.importorskip("pynvml")


def started(simulate: Simulate, scenario: Scenario) -> Simulation:
    """Return an initialised simulation."""
    simulation = simulate(scenario)
    pynvml.nvmlInit()
    return simulation


@pytest.mark.parametrize("code", Code)
def test_every_code_is_an_error(simulate: Simulate, code: Code) -> None:
    """A fault of any code arrives in Python as the error of that code, and other calls go on."""
    sim = started(simulate, presets.h200())
    sim.inject(Fault(function="nvmlDeviceGetPowerUsage", code=code))
    device = handle()
    assert code_of(lambda: pynvml.nvmlDeviceGetPowerUsage(device)) == code
    assert utilisation(0) == 92


@pytest.mark.parametrize(
    "code", [Code.NO_PERMISSION, Code.LIB_RM_VERSION_MISMATCH, Code.DRIVER_NOT_LOADED, Code.UNKNOWN]
)
def test_initialisation_that_fails(simulate: Simulate, code: Code) -> None:
    """A driver that cannot be initialised says why, and nothing can be read."""
    simulate(presets.h200().with_faults(Fault(function="nvmlInit", code=code)))
    assert code_of(pynvml.nvmlInit) == code
    assert code_of(pynvml.nvmlDeviceGetCount) == Code.UNINITIALIZED


def test_no_library(simulate: Simulate) -> None:
    """A machine without the driver's library has none, though it may be simulated afterwards."""
    simulate(presets.no_driver())
    assert code_of(pynvml.nvmlInit) == Code.LIBRARY_NOT_FOUND


def test_before_and_after_its_time(simulate: Simulate) -> None:
    """Calls before initialisation and after the last shutdown are refused; initialisations are counted."""
    simulate(presets.h200())
    assert code_of(pynvml.nvmlDeviceGetCount) == Code.UNINITIALIZED
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    assert code_of(pynvml.nvmlDeviceGetCount) == Code.UNINITIALIZED


def test_window_of_a_fault(simulate: Simulate) -> None:
    """A fault holds from its start up to, and without, its end."""
    fault = Fault(function="nvmlDeviceGetUtilizationRates", code=Code.UNKNOWN, start_s=2.0, end_s=3.0)
    sim = started(simulate, presets.h200().with_faults(fault))
    outcomes = []
    for s in (1.999, 2.0, 2.999, 3.0):
        sim.set_time(s)
        try:
            outcomes.append(utilisation(0))
        except pynvml.NVMLError_Unknown:
            outcomes.append(-1)
    assert outcomes == [92, -1, -1, 92]


def test_fault_of_one_device(simulate: Simulate) -> None:
    """A handle that may not be had is that of one device; the other is read."""
    fault = Fault(function="nvmlDeviceGetHandleByIndex", code=Code.NO_PERMISSION, gpu=0)
    started(simulate, presets.two_gpus().with_faults(fault))
    assert code_of(lambda: utilisation(0)) == Code.NO_PERMISSION
    assert utilisation(1) == 20


def test_lost_device(simulate: Simulate) -> None:
    """A device that falls off the bus fails in all calls, and only that device."""
    sim = started(simulate, presets.two_gpus())
    lost, other = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    sim.inject(Fault(function="*", code=Code.GPU_IS_LOST, gpu=0))
    assert code_of(lambda: pynvml.nvmlDeviceGetPowerUsage(lost)) == Code.GPU_IS_LOST
    assert code_of(lambda: pynvml.nvmlGpmSampleGet(lost, pynvml.nvmlGpmSampleAlloc())) == Code.GPU_IS_LOST
    assert pynvml.nvmlDeviceGetPowerUsage(other) == 310_000
    sim.clear()
    assert pynvml.nvmlDeviceGetPowerUsage(lost) == 310_000


def test_fault_of_a_part(simulate: Simulate) -> None:
    """One field, one kind of samples, one metric or one clock may fail, and the others do not."""
    sim = started(simulate, presets.h200())
    device = handle()
    sim.set_time(1.0)
    names = (
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetSamples",
        "nvmlGpmMetricsGet",
        "nvmlDeviceGetClockInfo",
    )
    for name, part in zip(names, (269, 1, 10, 2), strict=True):
        sim.inject(Fault(function=name, part=part, code=Code.NO_PERMISSION))
    fields = pynvml.nvmlDeviceGetFieldValues(device, [269, 270])
    assert [field.nvmlReturn for field in fields] == [Code.NO_PERMISSION, 0]
    assert code_of(lambda: pynvml.nvmlDeviceGetSamples(device, 1, 0)) == Code.NO_PERMISSION
    assert pynvml.nvmlDeviceGetSamples(device, 2, 0)[1][0].sampleValue.uiVal == 40
    assert code_of(lambda: pynvml.nvmlDeviceGetClockInfo(device, 2)) == Code.NO_PERMISSION
    assert pynvml.nvmlDeviceGetClockInfo(device, 1) == 1755
    (denied, _), (right, value) = gpm_between(sim, 1.0, 2.0, 10, 2)
    assert (denied, right) == (Code.NO_PERMISSION, 0)
    assert value == pytest.approx(71)


def test_garbage(simulate: Simulate) -> None:
    """A wrong value is given in its window: by the call at that time, by the samples of that time."""
    name = "nvmlDeviceGetSamples"
    samples = Garbage(function=name, part=1, value=4294967295, start_s=1.0, end_s=1.4)
    reset = Garbage(function="nvmlDeviceGetTotalEnergyConsumption", value=3, start_s=2.0)
    sim = started(simulate, presets.h200().with_garbage(samples, reset))
    sim.set_time(2.0)
    device = handle()
    values = [sample.sampleValue.uiVal for sample in pynvml.nvmlDeviceGetSamples(device, 1, 0)[1]]
    assert values == [92] * 5 + [4294967295] * 3 + [92] * 4
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(device) == 3


def test_latency_lets_other_threads_go_on(simulate: Simulate) -> None:
    """A slow call takes its time without the interpreter's lock and without holding up other calls."""
    sim = started(simulate, presets.h200())
    sim.slow_down("nvmlDeviceGetUtilizationRates", 400_000)
    took: list[float] = []

    def slow() -> None:
        since = time.monotonic()
        utilisation(0)
        took.append(time.monotonic() - since)

    thread = threading.Thread(target=slow)
    thread.start()
    device = handle()
    while sim.calls("nvmlDeviceGetUtilizationRates") == 0 and thread.is_alive():
        pass
    pynvml.nvmlDeviceGetPowerUsage(device)
    assert thread.is_alive()
    thread.join(10)
    assert took[0] >= 0.4


def test_call_counts(simulate: Simulate) -> None:
    """Calls are counted by function, failed ones too, from 0 in a new simulation or when told."""
    sim = started(simulate, presets.h200())
    for _ in range(3):
        utilisation(0)
    sim.inject(Fault(function="nvmlDeviceGetUtilizationRates", code=Code.UNKNOWN))
    code_of(lambda: utilisation(0))
    names = ("nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUtilizationRates")
    assert [sim.calls(name) for name in names] == [1, 4, 4]
    sim.reset_calls()
    assert sim.calls("nvmlDeviceGetUtilizationRates") == 0
    with pytest.raises(ValueError, match="no function 'nvmlDeviceGetUtilisation'"):
        sim.calls("nvmlDeviceGetUtilisation")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (Fault(function="nvmlDeviceGetUtilisation", code=Code.UNKNOWN), "unknown function"),
        (Fault(function="*", code=Code.UNKNOWN, gpu=3), "no such device"),
        (Fault(function="*", code=Code.UNKNOWN, gpu=0, mig=1), "no such device"),
        (Fault(function="*", code=Code.UNKNOWN, mig=1), "mig=1 without gpu"),
    ],
)
def test_mistakes_in_a_scenario(simulate: Simulate, text: Fault, problem: str) -> None:
    """A fault of a function or a device that does not exist is refused, with the line."""
    with pytest.raises(ValueError, match=problem):
        simulate(presets.h200().with_faults(text))


def test_everything_is_as_before(simulate: Simulate) -> None:
    """After a simulation pynvml is what it was, and a second one at the same time is refused."""
    names = ("nvmlLib", "_nvmlGetFunctionPointer_cache", "_nvmlLib_refcount", "CDLL")
    before = [getattr(pynvml, name) for name in names]
    with Simulation(presets.h200()):
        assert pynvml.nvmlLib is not before[0]
        with pytest.raises(RuntimeError, match="one at a time"):
            simulate(presets.a100())
    assert [getattr(pynvml, name) for name in names] == before
