"""What a GPU's counters say of a work that is known: the same on a simulated GPU and on a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gpu.machines import Machine, RealMachine, Seen, SimulatedMachine
from nvml_sim import presets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu.figures import Figures
    from nvml_sim import Scenario
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]

SECONDS = 3.0
ROOT = Path(__file__).parents[2]
NOBODY = 65_534

CHILD = """
import json, time
from trackperf.devices.gpu import GpuReadings
readings = GpuReadings([{index}], answer_s=10.0)
readings.start()
readings.describe()
readings.read(time.perf_counter_ns() - 1, time.perf_counter_ns())
begin = time.perf_counter_ns()
time.sleep(1.0)
values = readings.read(begin, time.perf_counter_ns())
print(json.dumps([values.get("perf/mem_bw_pct"), readings.absent().get("perf/mem_bw_pct", "")]))
"""
"""Reads bandwidth in a process of its own, which need not be root's."""


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Return a GPU that can be put to work."""
    if request.param == "simulated":
        simulate: Simulate = request.getfixturevalue("simulate")
        yield SimulatedMachine(simulate)
        return
    real = RealMachine()
    yield real
    real.close()


def gpm(seen: Seen, key: str) -> float:
    """Return a value of the newer counters; the test ends here on a GPU that does not have them."""
    if key not in seen.values:
        assert seen.absent[key]
        pytest.skip(f"{key} is not measured here: {seen.absent[key]}")
    return seen.values[key]


def test_bandwidth_of_a_copy(machine: Machine, figures: Figures) -> None:
    """A copy reads and writes each byte once: bandwidth is that share of the peak, to 5 points."""
    seen = machine.window("copy", SECONDS)
    facts = machine.facts()
    assert facts.peak_bandwidth_gb_s
    figures.add("copy", seen.rate / 1e9, "GB/s")
    figures.add("peak bandwidth", facts.peak_bandwidth_gb_s, "GB/s", facts.peak_source)
    figures.add("datasheet bandwidth", facts.datasheet_gb_s or "not in the table", "GB/s")
    found, right = gpm(seen, "perf/mem_bw_pct"), seen.rate / facts.peak_bandwidth_gb_s / 1e7
    figures.add("mem_bw_pct of a copy", found, "%", f"{right:.1f} +- 5")
    assert found == pytest.approx(right, abs=5.0)
    assert seen.values["perf_gpu/mem_bw_gb_s"] == pytest.approx(seen.rate / 1e9, rel=0.08)


def test_product_of_matrices(machine: Machine, figures: Figures) -> None:
    """A large product keeps multiprocessors and tensor cores busy, and the memory less than a copy."""
    copy = machine.window("copy", SECONDS)
    seen = machine.window("product", SECONDS)
    figures.add("product of float16 matrices", seen.rate / 1e12, "TFLOP/s")
    bandwidth = gpm(seen, "perf/mem_bw_pct")
    active, tensor = (seen.values[f"perf_gpu/{name}_active_pct"] for name in ("sm", "tensor"))
    figures.add("mem_bw_pct of a product", bandwidth, "%", "less than that of a copy")
    figures.add("sm_active_pct of a product", active, "%", "at least 80")
    figures.add("tensor_active_pct of a product", tensor, "%", "at least 30")
    assert bandwidth < copy.values["perf/mem_bw_pct"]
    assert active >= 80
    assert tensor >= 30


def test_nothing(machine: Machine, figures: Figures) -> None:
    """A GPU that does nothing has counters that say 0, or nearly."""
    machine.window("idle", 1.0)
    seen = machine.window("idle", SECONDS)
    figures.add("gpu_util_pct of nothing", seen.values["perf/gpu_util_pct"], "%", "at most 5")
    assert seen.values["perf/gpu_util_pct"] <= 5
    assert gpm(seen, "perf/mem_bw_pct") <= 2


def test_duty_cycle(machine: Machine, figures: Figures) -> None:
    """Busy for 80 of every 100 ms is a utilisation of 80, neither 0 nor 100, of several samples."""
    machine.window("duty", 1.0)
    seen = machine.window("duty", 5.0)
    names = ("perf/gpu_util_pct", "perf_gpu/util_min_pct", "perf_gpu/util_max_pct", "perf_gpu/util_samples")
    mean, least, most, samples = (seen.values[name] for name in names)
    for name, value in zip(names, (mean, least, most, samples), strict=True):
        figures.add(
            f"{name.rpartition('/')[2]} of 80 ms in 100", value, "", "80 +- 5" if value is mean else ""
        )
    assert mean == pytest.approx(80, abs=5)
    assert least <= mean <= most
    assert samples >= 5


def test_energy_and_power(machine: Machine, figures: Figures) -> None:
    """Energy by its counter is mean power times time, to 20 %."""
    before = machine.window("copy", SECONDS)
    seen = machine.window("copy", SECONDS)
    if "perf_gpu/energy_j" not in seen.values:
        pytest.skip(f"energy is not measured here: {seen.absent['perf_gpu/energy_j']}")
    used = seen.values["perf_gpu/energy_j"] - before.values["perf_gpu/energy_j"]
    figures.add("power of a copy", seen.values["perf_gpu/power_w"], "W")
    # A real machine works itself warm before a window; that energy is counted as well, at about that power.
    least, most = 0.8 * seen.seconds, 1.2 * (seen.seconds + 1.0)
    figures.add("energy of a copy over its power", used / seen.values["perf_gpu/power_w"], "s")
    assert least <= used / seen.values["perf_gpu/power_w"] <= most


def child(environ: dict[str, str], index: int, **user: Any) -> tuple[float | None, str]:
    """Return the bandwidth that another process reads, and why where it reads none."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(index=index)],
        cwd=ROOT,
        env={**os.environ, **environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **user,
    )
    if done.returncode:
        return None, f"the process could not run: {done.stderr.strip().splitlines()[-1:]}"
    found, why = json.loads(done.stdout)
    return found, str(why)


def test_another_process_reads_bandwidth(driver_for: Callable[[Scenario], dict[str, str]]) -> None:
    """On a simulated GPU a process that uses no CUDA reads it; where there is no GPM, it says so."""
    assert child(driver_for(presets.h200()), 0)[0] == pytest.approx(37)
    assert child(driver_for(presets.a100()), 0) == (None, "GPM needs Hopper or newer")


@pytest.mark.gpu
def test_bandwidth_without_root(figures: Figures) -> None:
    """A process that is not root's reads bandwidth, or says why not; which of the two is a figure."""
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}
    try:
        found, why = child({"HOME": "/tmp"}, 0, **user)
    except (OSError, subprocess.SubprocessError) as error:
        found, why = None, f"not tried: {error}"
    figures.add("mem_bw_pct without root", why if found is None else found, "%", "a number, or a reason")
    assert found is not None or why
