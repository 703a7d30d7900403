"""Utilisation from the driver's own buffer: clocks, order, holes, and what cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpu_parts import Readings, stamped
from nvml_sim import At, Gpu, Scenario, mean

from trackperf.devices.buffered import Buffered, StampClock, stamp_clocks
from trackperf.devices.counters import Counter

if TYPE_CHECKING:
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]

S = 1_000_000_000
EPOCH_S = 1_700_000_000
BOOT_S = 123_456
TIMELINE = (At(s=0, util_pct=20.0), At(s=3, util_pct=80.0), At(s=7, util_pct=50.0))


class Machine:
    """Three clocks that stamps may be of, and a monotonic one, all in step."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.set_back_ns = 0
        self.clock = StampClock(
            [
                lambda: EPOCH_S * S + self.now_ns - self.set_back_ns,
                lambda: BOOT_S * S + self.now_ns,
                lambda: BOOT_S * S + 5000 * S + self.now_ns,
            ]
        )


@pytest.mark.parametrize("start_s", [EPOCH_S, BOOT_S, BOOT_S + 5000])
def test_clock_is_found(start_s: int) -> None:
    """Whatever stamps count from, a sample is placed where it belongs."""
    machine = Machine()
    machine.now_ns = 10 * S
    stamp_us = start_s * 10**6 + 9_900_000
    assert stamp_us * 1000 + machine.clock.shift(machine.now_ns, stamp_us) == 9_900_000_000


def test_clock_is_found_from_an_old_sample() -> None:
    """A GPU that idled for minutes has old samples only; they are of their own time all the same."""
    machine = Machine()
    machine.now_ns = 600 * S
    stamp_us = BOOT_S * 10**6 + 300_000_000
    assert stamp_us * 1000 + machine.clock.shift(machine.now_ns, stamp_us) == 300 * S


def test_wall_clock_is_set() -> None:
    """When the wall clock is set back, later stamps are still placed right."""
    machine = Machine()
    machine.clock.shift(0, EPOCH_S * 10**6)
    machine.set_back_ns, machine.now_ns = 30 * S, 10 * S
    stamp_us = (EPOCH_S - 20) * 10**6
    assert stamp_us * 1000 + machine.clock.shift(machine.now_ns, stamp_us) == 10 * S


def test_unknown_clock() -> None:
    """Stamps of a clock that is none of them are placed by the freshest sample so far."""
    machine = Machine()
    for now_s, age_ms in ((1.0, 150), (2.0, 20), (3.0, 160)):
        shift_ns = machine.clock.shift(round(now_s * S), 555 + round(now_s * 1e6) - age_ms * 1000)
    assert 555_000 + shift_ns == 20_000_000


def test_clocks_of_this_machine() -> None:
    """The clocks that are tried are those of the wall and of the machine's start."""
    readings = [clock() for clock in stamp_clocks(lambda: 42)]
    assert readings[0] == 42
    assert len(readings) >= 2


@pytest.mark.parametrize("stamp_base_s", [0.0, 99_999.0])
def test_stamps_of_no_known_clock(simulate: Simulate, stamp_base_s: float) -> None:
    """Through the real library, samples stamped by a clock of the driver's own make the right means."""
    run = Readings(simulate, Scenario(gpus=(Gpu(timeline=TIMELINE),), stamp_base_s=stamp_base_s))
    for begin_s in range(0, 10, 2):
        value = run.window()["perf/gpu_util_pct"]
        assert value == pytest.approx(mean(TIMELINE, "util_pct", begin_s, begin_s + 2), abs=6)


@pytest.mark.parametrize("ring", [False, True])
def test_order_of_a_ring(simulate: Simulate, ring: bool) -> None:
    """Samples that come in the order of a ring buffer make the same means as those in order of time."""
    scenario = Scenario(gpus=(Gpu(timeline=TIMELINE),), sample_buffer=30, sample_ring=ring)
    run = Readings(simulate, stamped(scenario))
    values = [run.window()["perf/gpu_util_pct"] for _ in range(6)]
    assert values == [pytest.approx(value, abs=1) for value in (20, 50, 80, 65, 50, 50)]


def test_idle_leaves_no_samples(simulate: Simulate) -> None:
    """Where an idle GPU leaves no samples, polls tell of that time: half a window of work is half."""
    timeline = (
        At(s=0, util_pct=100.0),
        At(s=1, util_pct=0.0),
        At(s=5, util_pct=100.0),
        At(s=6, util_pct=0.0),
    )
    run = Readings(simulate, stamped(Scenario(gpus=(Gpu(timeline=timeline),), sample_idle=False)))
    values = [run.window()["perf/gpu_util_pct"] for _ in range(5)]
    assert values == [pytest.approx(value, abs=3) for value in (50, 0, 50, 0, 0)]


def test_wrong_values_leave_a_hole() -> None:
    """A value over 100 is not used, nor is its time given to the next one."""
    machine = Machine()
    machine.now_ns = S
    told = Counter("util_pct", "GPU 0")
    buffer = Buffered(Counter("samples", "GPU 0"), machine.clock, told)
    samples = [(EPOCH_S * 10**6 + ms * 1000, value) for ms, value in ((200, 10.0), (400, 300.0), (600, 30.0))]
    buffer.drain(machine.now_ns, lambda _after: samples)
    spans = [(span.begin_ns // 10**6, span.end_ns // 10**6, span.value) for span in buffer.track.take(0, S)]
    assert spans == [(0, 200, 10.0), (400, 600, 30.0)]
    assert told.rejected == 1


def test_samples_in_no_order() -> None:
    """Samples are put in the order of time before anything is made of them."""
    machine = Machine()
    machine.now_ns = S
    buffer = Buffered(Counter("samples", "GPU 0"), machine.clock, Counter("util_pct", "GPU 0"))
    samples = [(EPOCH_S * 10**6 + ms * 1000, ms / 10) for ms in (600, 800, 200, 400)]
    buffer.drain(machine.now_ns, lambda _after: samples)
    assert [span.value for span in buffer.track.take(0, S)] == [20, 40, 60, 80]


def test_samples_come_once() -> None:
    """A driver that gives samples again, though newer ones were asked for, changes nothing."""
    machine = Machine()
    machine.now_ns = S
    told = Counter("util_pct", "GPU 0")
    buffer = Buffered(Counter("samples", "GPU 0"), machine.clock, told)
    samples = [(EPOCH_S * 10**6 + ms * 1000, 50.0) for ms in (200, 400, 600, 800)]
    samples[1] = (samples[1][0], 101.0)
    asked: list[int] = []

    def fetch(after_us: int) -> list[tuple[int, float]]:
        asked.append(after_us)
        return samples

    buffer.drain(machine.now_ns, fetch)
    buffer.drain(machine.now_ns, fetch)
    assert asked == [0, samples[-1][0]]
    assert len(buffer.track.take(0, S)) == 3
    assert told.rejected == 1
