"""A GPU at a known work while its counters are read: a simulated one, or torch's."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, final

from gpu_parts import Readings, stamped
from nvml_sim import At, duty_cycle, presets

from trackperf.devices.gpu import GpuReadings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nvml_sim.fixtures import Simulate

    from trackperf.devices.facts import DeviceFacts

__all__ = ["Machine", "RealMachine", "Seen", "SimulatedMachine", "Work"]

Work: TypeAlias = Literal["idle", "copy", "product", "duty"]
"""Nothing; a copy within the memory; a product of large matrices; busy for 80 of every 100 ms."""

BUSY_S: Final = 0.08
IDLE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Seen:
    """A window in which a work was done."""

    values: Mapping[str, float]
    seconds: float
    rate: float = 0.0
    """What the work came to a second: bytes read and written, or floating-point operations."""

    absent: Mapping[str, str] = field(default_factory=dict)


class Machine(Protocol):
    """A GPU that can be put to work."""

    def window(self, work: Work, seconds: float) -> Seen:
        """Work for a time and return what its window says."""
        ...

    def facts(self) -> DeviceFacts:
        """Return what is said of the GPU."""
        ...


@final
class SimulatedMachine:
    """An H200 whose counters say what the work must make them say."""

    _STATES: Final = {
        "idle": At(s=0, util_pct=0, sm_active_pct=0, tensor_active_pct=0, dram_pct=0, power_w=80),
        "copy": At(s=0, util_pct=100, sm_active_pct=95, tensor_active_pct=0, dram_pct=88, power_w=500),
        "product": At(s=0, util_pct=100, sm_active_pct=99, tensor_active_pct=85, dram_pct=30, power_w=690),
    }

    def __init__(self, simulate: Simulate) -> None:
        self._readings = Readings(simulate, stamped(presets.h200()))
        self._readings.window(1.0)

    def window(self, work: Work, seconds: float) -> Seen:
        """Let the simulated GPU do it."""
        run, start_s = self._readings, self._readings.sim.now_s
        points = [self._at("product" if work == "duty" else work, start_s)]
        if work == "duty":
            rest, until_s = self._at("idle", start_s), start_s + seconds
            points = [*duty_cycle(points[0], rest, busy_s=BUSY_S, idle_s=IDLE_S, until_s=until_s)]
        for point in points:
            run.sim.append(point)
        values = run.window(seconds, polls=0.25)
        peak = (self.facts().peak_bandwidth_gb_s or 0.0) * 1e9
        rates = {"copy": 0.88 * peak, "product": 8e14}
        return Seen(values, seconds, rates.get(work, 0.0), run.sampler.absent())

    def facts(self) -> DeviceFacts:
        """Return what is said of the GPU."""
        return self._readings.facts()

    def _at(self, state: str, s: float) -> At:
        given = self._STATES[state].given()
        return At(s=s, **given)


@final
class RealMachine:
    """torch's current device, read as a run reads it."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        torch.zeros(1, device="cuda")
        self._readings = GpuReadings(answer_s=10.0)
        self._readings.start()
        self._works: dict[Work, Callable[[float], float]] = {
            "idle": self._idle,
            "copy": self._copy,
            "product": self._product,
            "duty": self._duty,
        }
        self._look(time.perf_counter_ns() - 1)

    def window(self, work: Work, seconds: float) -> Seen:
        """Work, and read the window of exactly that work."""
        if work in ("copy", "product"):
            self._works[work](0.3)  # clocks are up and memory is there when the window begins
        self._look(time.perf_counter_ns() - 300_000_000)
        begin_ns = time.perf_counter_ns()
        rate = self._works[work](seconds)
        values = self._look(begin_ns)
        return Seen(values, (time.perf_counter_ns() - begin_ns) * 1e-9, rate, self._readings.absent())

    def facts(self) -> DeviceFacts:
        """Return what is said of the GPU."""
        return self._readings.describe()[0]

    def close(self) -> None:
        """Stop reading."""
        self._readings.close()

    def _look(self, begin_ns: int) -> dict[str, float]:
        return self._readings.read(begin_ns, time.perf_counter_ns())

    def _idle(self, seconds: float) -> float:
        self._torch.cuda.synchronize()
        time.sleep(seconds)
        return 0.0

    def _copy(self, seconds: float) -> float:
        free = self._torch.cuda.mem_get_info()[0]
        length = int(min(2**30, free // 8)) // 4
        source = self._torch.ones(length, device="cuda")
        target = self._torch.empty_like(source)
        return self._rate(seconds, lambda: target.copy_(source), 2 * 4 * length)

    def _product(self, seconds: float) -> float:
        side = 8192
        a, b = (self._torch.randn(side, side, device="cuda", dtype=self._torch.float16) for _ in range(2))
        out = self._torch.empty_like(a)
        return self._rate(seconds, lambda: self._torch.mm(a, b, out=out), 2 * side**3)

    def _rate(self, seconds: float, work: Callable[[], object], amount: float) -> float:
        """Keep the device at a work with never an empty queue, and return its amount a second."""
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        ahead = [self._torch.cuda.Event() for _ in range(4)]
        done, until = 0, time.perf_counter() + seconds
        begin.record()
        while time.perf_counter() < until:
            mark = ahead[done % len(ahead)]
            mark.synchronize()
            work()
            mark.record()
            done += 1
        end.record()
        end.synchronize()
        return float(done * amount / (begin.elapsed_time(end) * 1e-3))

    def _duty(self, seconds: float) -> float:
        cuda = self._torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cycles = 50_000_000
        for _ in range(10):
            begin.record()
            cuda._sleep(cycles)
            end.record()
            end.synchronize()
        per_s = cycles / (begin.elapsed_time(end) * 1e-3)
        next_s = time.perf_counter()
        until = next_s + seconds
        while next_s < until:
            cuda._sleep(int(BUSY_S * per_s))
            cuda.synchronize()
            next_s += BUSY_S + IDLE_S
            time.sleep(max(0.0, next_s - time.perf_counter()))
        return 0.0
