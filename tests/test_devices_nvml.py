"""The session with the driver: old and new functions, old and new `pynvml`, and errors."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from nvml_sim import Code, Fault, presets

from trackperf.devices.counters import DriverError
from trackperf.devices.nvml import Nvml

if TYPE_CHECKING:
    from nvml_sim import Scenario, Simulation
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]
pynvml: Any = pytest.importorskip("pynvml")


def opened(simulate: Simulate, scenario: Scenario) -> tuple[Nvml, Simulation, Any]:
    """Return a session, its machine, and the first device."""
    simulation = simulate(scenario)
    nvml = Nvml()
    nvml.open()
    return nvml, simulation, nvml.by_index(0)


@pytest.mark.parametrize("code", Code)
def test_every_error_is_told(simulate: Simulate, code: Code) -> None:
    """Whatever the driver says arrives as its code and its words, and the function's name."""
    nvml, sim, device = opened(simulate, presets.h200())
    sim.inject(Fault(function="nvmlDeviceGetPowerUsage", code=code))
    with pytest.raises(DriverError, match="nvmlDeviceGetPowerUsage") as caught:
        nvml.power_w(device)
    assert caught.value.code == code
    assert caught.value.text


def test_error_of_no_known_code(simulate: Simulate) -> None:
    """A code that `pynvml` has no class for is still its number."""
    nvml, sim, device = opened(simulate, presets.h200())
    sim._line("err nvmlDeviceGetPowerUsage 0 777 0 9e9")
    with pytest.raises(DriverError) as caught:
        nvml.power_w(device)
    assert caught.value.code == 777


def test_errors_that_are_none_of_the_drivers(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of `pynvml` that is not an NVMLError is an error of the call, and no other."""
    nvml, _, device = opened(simulate, presets.h200())

    def mismatch(_device: Any) -> int:
        raise pynvml.NVMLLibraryMismatchError("Driver too old")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", mismatch)
    with pytest.raises(DriverError, match="Driver too old"):
        nvml.power_w(device)


@pytest.mark.parametrize("missing", ["nvmlDeviceGetTemperatureV", "nvmlMemory_v2", "nvmlDeviceGetClockInfo"])
def test_old_pynvml(simulate: Simulate, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """What an old `pynvml` does not have is done in the older way, or is a function not found."""
    nvml, _, device = opened(simulate, presets.h200())
    monkeypatch.delattr(pynvml, missing)
    assert nvml.temperature_c(device) == 58
    assert nvml.memory(device)[1] == 143_771 * 2**20
    if missing == "nvmlDeviceGetClockInfo":
        with pytest.raises(DriverError) as caught:
            nvml.sm_clock_mhz(device)
        assert caught.value.code == Code.FUNCTION_NOT_FOUND


def test_newer_function_is_tried_once(simulate: Simulate) -> None:
    """A function that the driver does not have is not asked for again."""
    nvml, sim, device = opened(simulate, presets.old_driver())
    for _ in range(3):
        assert nvml.clock_reasons(device) == 0
        assert nvml.memory(device)[0] == 12e9
    assert nvml._without == {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetMemoryInfo_v2"}
    assert sim.calls("nvmlDeviceGetCurrentClocksThrottleReasons") == 3


def test_driver_keeps_memory_for_itself(simulate: Simulate) -> None:
    """Where the driver tells its own share apart, use is without it."""
    nvml, _, device = opened(simulate, presets.h200())
    assert nvml.memory(device) == (12e9, 143_771 * 2**20)


def test_nothing_new_is_no_error(simulate: Simulate) -> None:
    """A buffer in which nothing is newer than what was seen is empty, and so is one that never had any."""
    nvml, sim, device = opened(simulate, presets.h200())
    assert nvml.samples(device, memory=False, after_us=0) == []
    sim.set_time(1.0)
    seen = nvml.samples(device, memory=False, after_us=0)
    assert [value for _, value in seen] == [92] * 6
    assert nvml.samples(device, memory=False, after_us=seen[-1][0]) == []


def test_without_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `pynvml` cannot be imported that is said, as the error that it is."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DriverError, match="cannot be imported") as caught:
        Nvml().open()
    assert caught.value.code == Code.LIBRARY_NOT_FOUND


def test_import_does_nothing() -> None:
    """Importing all of the readings imports neither `pynvml` nor torch, and starts no thread."""
    script = (
        "import sys, threading, trackperf.devices.gpu, trackperf.devices.sampler;"
        "assert not {'pynvml', 'torch'} & sys.modules.keys(); assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
