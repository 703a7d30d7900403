"""Energy against power, and the time that heat took."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from gpu_parts import Readings, messages, stamped
from nvml_sim import At, Code, Fault, Gpu, Scenario

from trackperf.devices.counters import Counter
from trackperf.devices.meters import EnergyMeter

if TYPE_CHECKING:
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]
pytest.importorskip("pynvml")

ENERGY = "perf_gpu/energy_j"
HEAT = "perf_gpu/thermal_throttle_pct"
STEADY = (At(s=0, power_w=200.0),)
HOT = (At(s=0, reasons=0), At(s=2.0, reasons=0x20), At(s=2.4, reasons=0x64), At(s=2.5, reasons=0x1))


def test_energy_is_of_the_run(simulate: Simulate) -> None:
    """Energy counts from the start of the run, whatever the GPU had used before."""
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=STEADY, energy_base_mj=9e9),))))
    assert [run.window()[ENERGY] for _ in range(3)] == [pytest.approx(value) for value in (400, 800, 1200)]


def test_driver_loaded_anew(simulate: Simulate) -> None:
    """A counter that went back to 0 goes on from there; energy never falls."""
    gpu = Gpu(timeline=STEADY, energy_base_mj=9e9, energy_reset_s=5.0)
    run = Readings(simulate, stamped(Scenario(gpus=(gpu,))))
    values = [run.window()[ENERGY] for _ in range(5)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(2000 - 200, abs=1)


@pytest.mark.parametrize("wrong_j", [2.0**50, 0.0])
def test_energy_that_cannot_be(wrong_j: float) -> None:
    """A single absurd reading does not make energy absurd, and readings after it count again."""
    meter = EnergyMeter(Counter("energy_j", "GPU 0"))
    for second in range(10):
        meter.see(second * 10**9, wrong_j if second == 4 else 9e6 + 200.0 * second)
    assert meter.counter.rejected == 1
    assert meter.total_j is not None
    assert 1200 <= meter.total_j <= 1800


@pytest.mark.parametrize(("scale", "told"), [(1.0, 0), (0.9, 0), (0.57, 1), (1.5, 1)])
def test_energy_against_power(
    simulate: Simulate, caplog: pytest.LogCaptureFixture, scale: float, told: int
) -> None:
    """A counter more than 20 % off the mean power is flagged, once, and still written."""
    timeline = tuple(At(s=s, power_w=150.0 + 100.0 * (s % 2)) for s in range(120))
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline, energy_scale=scale),))))
    values = [run.window()[ENERGY] for _ in range(50)]
    assert values[-1] == pytest.approx(100 * 200 * scale, rel=0.01)
    assert len(messages(caplog, "energy_j", "mean power", level=logging.WARNING)) == told
    assert bool(run.facts().counters["energy_j"].reason) is bool(told)


def test_heat_by_counters(simulate: Simulate) -> None:
    """Half a second of slowdown, by software and then by hardware, is 25 % of the window, unseen by polls."""
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=HOT),))))
    values = [run.window()[HEAT] for _ in range(3)]
    assert values == [0, pytest.approx(25, abs=1), 0]


def test_heat_by_bits(simulate: Simulate) -> None:
    """Without the counters the bits of the moment are looked at, more often than otherwise."""
    fields = [
        Fault(function="nvmlDeviceGetFieldValues", part=part, code=Code.NOT_SUPPORTED) for part in (269, 270)
    ]
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=HOT),), faults=tuple(fields))))
    run.window()
    assert run.sampler.period_s == 0.25
    values = [run.window(polls=run.sampler.period_s)[HEAT] for _ in range(2)]
    assert values == [pytest.approx(25, abs=13), 0]


@pytest.mark.parametrize(("reasons", "expected"), [(0x8, 0), (0x4, 0), (0x80, 0), (0x20, 100), (0x40, 100)])
def test_only_heat_counts(simulate: Simulate, reasons: int, expected: float) -> None:
    """Power caps, brakes and an unexplained slowdown are not heat."""
    fields = Fault(function="nvmlDeviceGetFieldValues", code=Code.NOT_SUPPORTED)
    gpu = Gpu(timeline=(At(s=0, reasons=reasons),))
    run = Readings(simulate, stamped(Scenario(gpus=(gpu,), faults=(fields,))))
    assert run.window()[HEAT] == expected


def test_heat_when_counters_stop(simulate: Simulate) -> None:
    """When the counters fail in the middle of a run the bits stand in for them, and nobody need be told."""
    fields = Fault(function="nvmlDeviceGetFieldValues", code=Code.UNKNOWN, start_s=2.1, end_s=6.0)
    gpu = Gpu(timeline=(At(s=0, reasons=0x40),))
    run = Readings(simulate, stamped(Scenario(gpus=(gpu,), faults=(fields,))))
    assert [run.window()[HEAT] for _ in range(8)] == [pytest.approx(100)] * 8
    assert run.sim.calls("nvmlDeviceGetCurrentClocksEventReasons") > 0
