"""Every counter of a GPU: right, absent, and gone for a while."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from gpu_parts import Readings, messages, stamped
from nvml_sim import Code, Fault, presets

from trackperf.devices.counters import Counter, DriverError

if TYPE_CHECKING:
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]
pytest.importorskip("pynvml")

GIB = 2**30


@dataclass(frozen=True)
class Row:
    """A series, its value on a busy H200, what a message calls it, and what the driver is asked."""

    name: str
    value: float
    told: str
    calls: tuple[tuple[str, int | None], ...]


UTIL = (("nvmlDeviceGetUtilizationRates", None), ("nvmlDeviceGetSamples", None))
MEMORY = (("nvmlDeviceGetMemoryInfo_v2", None), ("nvmlDeviceGetMemoryInfo", None))
THERMAL = (
    ("nvmlDeviceGetFieldValues", None),
    ("nvmlDeviceGetCurrentClocksEventReasons", None),
    ("nvmlDeviceGetCurrentClocksThrottleReasons", None),
)


def gpm(part: int) -> tuple[tuple[str, int | None], ...]:
    """Return what one of the newer GPUs' metrics is read by."""
    return (("nvmlGpmMetricsGet", part),)


ROWS = (
    Row("util_pct", 92.0, "util_pct", UTIL),
    Row("mem_busy_pct", 40.0, "util_pct", UTIL),
    Row("sm_active_pct", 71.0, "sm_active_pct", gpm(2)),
    Row("sm_occupancy_pct", 33.0, "sm_occupancy_pct", gpm(3)),
    Row("tensor_active_pct", 24.0, "tensor_active_pct", gpm(5)),
    Row("mem_bw_gb_s", 0.37 * 4916.736, "mem_bw_pct", gpm(10)),
    Row("pcie_tx_mb_s", 200.0, "pcie_tx_mb_s", gpm(20)),
    Row("pcie_rx_mb_s", 1500.0, "pcie_rx_mb_s", gpm(21)),
    Row("mem_used_gib", 12e9 / GIB, "mem_used_gib", MEMORY),
    Row("mem_used_pct", 100 * 12e9 / (143_771 * 2**20), "mem_used_gib", MEMORY),
    Row(
        "temp_c",
        58.0,
        "temp_c",
        (("nvmlDeviceGetTemperatureV", None), ("nvmlDeviceGetTemperature", None)),
    ),
    Row("thermal_throttle_pct", 0.0, "thermal slowdown", THERMAL),
    Row("power_w", 310.0, "power_w", (("nvmlDeviceGetPowerUsage", None),)),
    Row("energy_j", 620.0, "energy_j", (("nvmlDeviceGetTotalEnergyConsumption", None),)),
    Row("sm_clock_mhz", 1755.0, "sm_clock_mhz", (("nvmlDeviceGetClockInfo", 1),)),
    Row("mem_clock_mhz", 3201.0, "mem_clock_mhz", (("nvmlDeviceGetClockInfo", 2),)),
)
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def faults(row: Row, code: Code, start_s: float = 0.0, end_s: float = 1e9) -> list[Fault]:
    """Return the failure of all that a series is read by."""
    return [
        Fault(function=function, part=part, code=code, start_s=start_s, end_s=end_s)
        for function, part in row.calls
    ]


@every_row
def test_right(simulate: Simulate, row: Row) -> None:
    """What the GPU does all the time is what the window says, for the run and for the device."""
    values = Readings(simulate, stamped(presets.h200())).window()
    assert values[f"perf_gpu/{row.name}"] == pytest.approx(row.value, abs=0.01)
    assert values[f"perf_gpu0/{row.name}"] == values[f"perf_gpu/{row.name}"]


def test_headline(simulate: Simulate) -> None:
    """The headline series are the utilisation, the share of bandwidth, and the share of time."""
    values = Readings(simulate, stamped(presets.h200())).window()
    headline = [values[f"perf/{name}"] for name in ("gpu_util_pct", "mem_bw_pct", "mem_busy_pct")]
    assert headline == [pytest.approx(92), pytest.approx(37), pytest.approx(40)]


@every_row
def test_absent(simulate: Simulate, row: Row, caplog: pytest.LogCaptureFixture) -> None:
    """What a device does not report has no value, is asked once, and its reason is told once."""
    caplog.set_level(logging.INFO)
    run = Readings(simulate, stamped(presets.h200().with_faults(*faults(row, Code.NOT_SUPPORTED))))
    run.window()
    asked = [run.sim.calls(function) for function, part in row.calls if part is None]
    values = [run.window() for _ in range(4)]
    assert not any(key.endswith(f"/{row.name}") for window in values for key in window)
    assert [run.sim.calls(function) for function, part in row.calls if part is None] == asked
    assert "does not report" in run.sampler.absent()[f"perf_gpu/{row.name}"]
    assert run.facts().counters[row.name].state == "unsupported"
    assert len(messages(caplog, f" {row.told} of ", "GPU 0")) == 1
    assert not messages(caplog, level=logging.WARNING)


@every_row
@pytest.mark.parametrize("code", [Code.NO_PERMISSION, Code.UNKNOWN, Code.NOT_READY, Code.NOT_SUPPORTED])
def test_gone_for_a_while(simulate: Simulate, row: Row, code: Code, caplog: pytest.LogCaptureFixture) -> None:
    """What fails in the middle of a run is absent meanwhile, told once as a warning, and comes back."""
    caplog.set_level(logging.INFO)
    key = f"perf_gpu/{row.name}"
    run = Readings(simulate, stamped(presets.h200().with_faults(*faults(row, code, 4.0, 9.0))))
    assert key in run.window(1.9)
    run.window(2.2)
    during = [run.window(), run.window()]
    assert not any(key in window for window in during)
    assert run.facts().counters[row.name].state == ("denied" if code is Code.NO_PERMISSION else "transient")
    assert key in run.sampler.absent()
    after = [run.window() for _ in range(4)]
    assert after[-1][key] == pytest.approx(row.value if row.name != "energy_j" else 310 * 16.1, abs=7)
    assert key not in run.sampler.absent()
    assert run.facts().counters[row.name].state == "ok"
    assert len(messages(caplog, f" {row.told} of ", level=logging.WARNING)) == 1
    assert len(messages(caplog, f" {row.told} of ", "answers again")) == 1


def test_waits_longer_each_time() -> None:
    """A counter that keeps failing is asked after 2, 4, 8, ... seconds, and every minute in the end."""
    counter = Counter("power_w", "GPU 0")
    asked_s: list[int] = []

    def fail() -> None:
        asked_s.append(now_ns // 10**9)
        raise DriverError(Code.UNKNOWN, "Unknown Error", "nvmlDeviceGetPowerUsage")

    for now_ns in range(0, 400 * 10**9, 10**9):
        counter.ask(now_ns, fail)
    waits = [after - before for before, after in itertools.pairwise(asked_s)]
    assert waits[:6] == [2, 4, 8, 16, 32, 60]
    assert set(waits[5:]) == {60}


def test_begins_anew_after_it_answered() -> None:
    """A counter that answered in between is asked again soon after its next failure."""
    counter = Counter("power_w", "GPU 0")
    error = DriverError(Code.NO_PERMISSION, "Insufficient Permissions", "nvmlDeviceGetPowerUsage")
    for now_ns in (0, 2 * 10**9, 6 * 10**9):
        counter.failed(error, now_ns)
    counter.answered()
    counter.failed(error, 20 * 10**9)
    assert not counter.due(21_900_000_000)
    assert counter.due(22 * 10**9)


def test_error_of_the_device_is_not_the_counters() -> None:
    """A lost device is told to whoever asks for the device, and is not held against one counter."""
    counter = Counter("power_w", "GPU 0")

    def lost() -> None:
        raise DriverError(Code.GPU_IS_LOST, "GPU is lost", "nvmlDeviceGetPowerUsage")

    with pytest.raises(DriverError, match="GPU is lost"):
        counter.ask(0, lost)
    assert counter.state == "unasked"
