"""A run on a device: a fake one on a clock that is told the time, or a real one in real time."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Protocol, final

from fakecuda import Device

import trackperf
from trackperf.testing import MemorySink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest
    from harness import Bench, Maker

    from trackperf import Collector
    from trackperf.record import RunSummary
    from trackperf.timing.device import DeviceTimeline
    from trackperf.timing.marks import Marks

__all__ = ["CudaRig", "FakeRig", "Rig"]

REAL_TIME = 0.1
"""Seconds of a scenario are tenths of a second on a real device."""

SPIN_S = 0.001
WARM_S = 0.5


class Rig(Protocol):
    """Where a scenario runs; times are those of the scenario."""

    points: float
    """How far a share may be from what it must be, in points of a per cent."""

    scale: float
    """Real seconds for a second of the scenario."""

    @property
    def perf(self) -> Collector:
        """The run, begun when it is first asked for."""
        ...

    def launch(self, seconds: float) -> None:
        """Queue work on the device; returns at once."""
        ...

    def rest(self, seconds: float) -> None:
        """Let time pass on the host."""
        ...

    def block(self) -> None:
        """Wait for the device, as a user's `.item()` does."""
        ...

    def capture(self) -> contextlib.AbstractContextManager[None]:
        """Capture what is launched into a graph, for a while."""
        ...

    def end(self) -> RunSummary:
        """End the run."""
        ...


def batches(rig: Rig, count: int, wait_s: float) -> Iterator[int]:
    """Yield batches of eight samples, each after a wait of the host."""
    for _ in range(count):
        rig.rest(wait_s)
        yield 8


@final
class FakeRig:
    """A device that works through a queue, on a fake clock."""

    def __init__(self, bench: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.points, self.scale = 0.001, 1.0
        self._run: Bench = bench(alerts=False)
        self.device = Device(self._run.clock)
        self._run.perf._find = self._found
        monkeypatch.setattr("trackperf.reporter.accelerator_in_use", lambda: "cuda")

    def _found(self, marks: Marks) -> DeviceTimeline:
        return self.device.timeline(marks)

    @property
    def perf(self) -> Collector:
        """The run."""
        return self._run.perf

    def launch(self, seconds: float) -> None:
        """Queue work; while a graph is captured it does not run."""
        if not self.device.capturing:
            self.device.launch(seconds)

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        self._run.clock.advance(seconds)

    def block(self) -> None:
        """Wait for the queue."""
        self.device.synchronize()

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Forbid what must not happen during a capture."""
        self.device.capturing = True
        before = (self.device.records, self.device.queries)
        yield
        assert (self.device.records, self.device.queries) == before
        self.device.capturing = False

    def end(self) -> RunSummary:
        """End the run."""
        return self._run.total()


@final
class CudaRig:
    """torch's current CUDA device: work is a kernel that spins for a number of cycles."""

    def __init__(self, folder: Path) -> None:
        import torch

        self.points, self.scale = 4.0, REAL_TIME
        self._torch: Any = torch
        self._folder = folder
        self._perf: Collector | None = None
        self.sink = MemorySink()
        self.cycles_per_s = self._calibrated()

    def _calibrated(self) -> float:
        """Return cycles a second of the spinning kernel, once the clocks are up."""
        cuda = self._torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cycles, until = 20_000_000, time.perf_counter() + WARM_S
        while time.perf_counter() < until:
            begin.record()
            cuda._sleep(cycles)
            end.record()
            end.synchronize()
        return float(cycles / (begin.elapsed_time(end) * 1e-3))

    @property
    def perf(self) -> Collector:
        """The run, begun with the first step to come."""
        if self._perf is None:
            self._perf = trackperf.init(
                sink=self.sink, dir=self._folder, warmup_steps=0, alerts=False, interval_s=0.5
            )
        return self._perf

    def launch(self, seconds: float) -> None:
        """Queue a kernel of that length."""
        self._torch.cuda._sleep(int(seconds * self.scale * self.cycles_per_s))

    def rest(self, seconds: float) -> None:
        """Sleep, and spin for the end of it: a sleep alone comes back late."""
        until = time.perf_counter() + seconds * self.scale
        time.sleep(max(0.0, until - time.perf_counter() - SPIN_S))
        while time.perf_counter() < until:
            pass

    def block(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize()

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Capture into a graph that is thrown away."""
        with self._torch.cuda.graph(self._torch.cuda.CUDAGraph()):
            yield

    def end(self) -> RunSummary:
        """End the run."""
        self.perf.finish()
        assert self.sink.summary is not None
        return self.sink.summary
