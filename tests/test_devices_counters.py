"""Every counter of a GPU: right, absent, and gone for a while."""

from __future__ import annotations

import itertools
import logging
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_parts import Readings, as_torch, messages, stamped
from nvml_sim import Code, Fault, presets

from trackperf.devices.counters import Counter, DriverError
from trackperf.devices.sampler import GPU_HEADLINE, GPU_KEYS, GPU_SPREAD
from trackperf.metrics import CATALOGUE

if TYPE_CHECKING:
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]
pytest.importorskip("pynvml")

GIB = 2**30


@dataclass(frozen=True)
class Row:
    """A series, its value on a busy H200, what a message calls it, and what the driver is asked."""

    key: str
    value: float
    told: str
    calls: tuple[tuple[str, int | None], ...]
    counter: str = ""
    """The counter that it is read by, where that has not its name."""

    @property
    def name(self) -> str:
        """Name of the counter in what is said of a device."""
        return self.counter or self.key.rpartition("/")[2]


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
    Row("perf_gpu/util_pct", 92.0, "util_pct", UTIL),
    Row("perf/gpu_util_pct", 92.0, "util_pct", UTIL, "util_pct"),
    Row("perf_gpu/util_min_pct", 92.0, "util_pct", UTIL, "util_pct"),
    Row("perf_gpu/util_max_pct", 92.0, "util_pct", UTIL, "util_pct"),
    Row("perf_gpu/util_samples", 13.0, "util_pct", UTIL, "util_pct"),
    Row("perf_gpu/mem_busy_pct", 40.0, "util_pct", UTIL),
    Row("perf/mem_busy_pct", 40.0, "util_pct", UTIL),
    Row("perf_gpu/sm_active_pct", 71.0, "sm_active_pct", gpm(2)),
    Row("perf_gpu/sm_occupancy_pct", 33.0, "sm_occupancy_pct", gpm(3)),
    Row("perf_gpu/tensor_active_pct", 24.0, "tensor_active_pct", gpm(5)),
    Row("perf/mem_bw_pct", 37.0, "mem_bw_pct", gpm(10)),
    Row("perf_gpu/mem_bw_gb_s", 0.37 * 4916.736, "mem_bw_pct", gpm(10)),
    Row("perf_gpu/pcie_tx_mb_s", 200.0, "pcie_tx_mb_s", gpm(20)),
    Row("perf_gpu/pcie_rx_mb_s", 1500.0, "pcie_rx_mb_s", gpm(21)),
    Row("perf_gpu/mem_used_gib", 12e9 / GIB, "mem_used_gib", MEMORY),
    Row("perf_gpu/mem_used_pct", 100 * 12e9 / (143_771 * 2**20), "mem_used_gib", MEMORY),
    Row(
        "perf_gpu/temp_c",
        58.0,
        "temp_c",
        (("nvmlDeviceGetTemperatureV", None), ("nvmlDeviceGetTemperature", None)),
    ),
    Row("perf_gpu/thermal_throttle_pct", 0.0, "thermal slowdown", THERMAL),
    Row("perf_gpu/power_w", 310.0, "power_w", (("nvmlDeviceGetPowerUsage", None),)),
    Row("perf_gpu/energy_j", 620.0, "energy_j", (("nvmlDeviceGetTotalEnergyConsumption", None),)),
    Row("perf_gpu/sm_clock_mhz", 1755.0, "sm_clock_mhz", (("nvmlDeviceGetClockInfo", 1),)),
    Row("perf_gpu/mem_clock_mhz", 3201.0, "mem_clock_mhz", (("nvmlDeviceGetClockInfo", 2),)),
)
TORCH_ROWS = {"perf_gpu/torch_reserved_gib": 6.0, "perf_gpu/torch_peak_gib": 4.0}
"""What is not asked of the driver, and its value here."""

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)


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
    assert values[row.key] == pytest.approx(row.value, abs=1 if row.key.endswith("samples") else 0.01)
    if row.key.startswith("perf_gpu/") and row.key not in GPU_SPREAD:
        assert values[row.key.replace("perf_gpu/", "perf_gpu0/")] == values[row.key]


@every_row
def test_absent(simulate: Simulate, row: Row, caplog: pytest.LogCaptureFixture) -> None:
    """What a device does not report has no value, is asked once, and its reason is told once."""
    caplog.set_level(logging.INFO)
    run = Readings(simulate, stamped(presets.h200().with_faults(*faults(row, Code.NOT_SUPPORTED))))
    run.window()
    asked = [run.sim.calls(function) for function, part in row.calls if part is None]
    values = [run.window() for _ in range(4)]
    gone = {row.key, row.key.replace("perf_gpu/", "perf_gpu0/")}
    assert not any(gone & window.keys() for window in values)
    assert [run.sim.calls(function) for function, part in row.calls if part is None] == asked
    assert "does not report" in run.sampler.absent()[row.key]
    assert run.facts().counters[row.name].state == "unsupported"
    assert len(messages(caplog, f" {row.told} of ", "GPU 0")) == 1
    assert not messages(caplog, level=logging.WARNING)


@every_row
@pytest.mark.parametrize("code", [Code.NO_PERMISSION, Code.UNKNOWN, Code.NOT_READY, Code.NOT_SUPPORTED])
def test_gone_for_a_while(simulate: Simulate, row: Row, code: Code, caplog: pytest.LogCaptureFixture) -> None:
    """What fails in the middle of a run is absent meanwhile, told once as a warning, and comes back."""
    caplog.set_level(logging.INFO)
    key = row.key
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


class Allocator:
    """As much of torch as tells what it holds of a GPU."""

    def __init__(self) -> None:
        self.version = SimpleNamespace(hip=None)
        self.cuda = SimpleNamespace(memory_stats_as_nested_dict=self._stats)
        self.told = True

    def _stats(self, index: int) -> dict[str, Any]:
        if not self.told or index != 0:
            raise RuntimeError("an allocator that does not count")
        return {
            "reserved_bytes": {"all": {"current": 6 * GIB}},
            "allocated_bytes": {"all": {"peak": 4 * GIB}},
        }


@pytest.mark.parametrize(("key", "value"), TORCH_ROWS.items())
def test_memory_that_torch_holds(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch, key: str, value: float
) -> None:
    """What torch's allocator holds is right, absent with a reason while it is not told, and comes back."""
    torch = Allocator()
    monkeypatch.setitem(sys.modules, "torch", torch)
    scenario = stamped(presets.h200())
    run = Readings(simulate, scenario, rank_devices=lambda: [as_torch(scenario.gpus[0])])
    assert run.window()[key] == value
    assert key not in run.sampler.absent()
    torch.told = False
    assert key not in run.window()
    assert run.sampler.absent()[key] == "torch does not tell what it holds of this device"
    torch.told = True
    assert run.window()[key] == value
    assert key not in run.sampler.absent()


def test_no_series_is_left_out() -> None:
    """The tables above are of every series of the catalogue that is read of a GPU."""
    read = {key for key in CATALOGUE if key.startswith("perf_gpu/") or key in GPU_HEADLINE}
    assert {row.key for row in ROWS} | TORCH_ROWS.keys() == read == GPU_KEYS.keys()


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
