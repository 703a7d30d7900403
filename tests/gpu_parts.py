"""A run's GPU readings on a simulated machine, moved by hand on the machine's own clock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from trackperf.devices.mapping import TorchDevice
from trackperf.devices.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest
    from nvml_sim import Gpu, Scenario, Simulation
    from nvml_sim.fixtures import Simulate

    from trackperf.devices.facts import DeviceFacts

__all__ = ["Readings", "as_torch", "messages", "stamped"]

EPOCH_NS = 1_700_000_000_000_000_000


class Readings:
    """A sampler, the machine that it reads, and a window of two seconds at a time."""

    def __init__(
        self,
        simulate: Simulate,
        scenario: Scenario,
        *,
        devices: Sequence[str | int] | None = None,
        rank_devices: Callable[[], Sequence[TorchDevice] | None] = lambda: None,
    ) -> None:
        self.sim: Simulation = simulate(scenario)
        self._installed = scenario.installed
        self._idle_ns = 0
        self.sampler = Sampler(
            devices, rank_devices=rank_devices, clock=self.clock, wall=lambda: EPOCH_NS + self.clock()
        )
        self._end_ns = 0

    def clock(self) -> int:
        """Return the machine's time."""
        return round(self.sim.now_s * 1e9) if self._installed else self._idle_ns

    def window(self, seconds: float = 2.0, *, polls: float = 0.5) -> dict[str, float]:
        """Let a window pass, polled as the thread would, and return its values."""
        begin_ns, left_s = self._end_ns, seconds
        while left_s > 1e-9:
            self.sampler.poll()
            step_s = min(polls, left_s)
            left_s -= step_s
            if self._installed:
                self.sim.advance(step_s)
            else:
                self._idle_ns += round(step_s * 1e9)
        self._end_ns = self.clock()
        return self.sampler.read(begin_ns, self._end_ns)

    def facts(self, index: int = 0) -> DeviceFacts:
        """Return what is said of a device."""
        return self.sampler.describe()[index]


def stamped(scenario: Scenario) -> Scenario:
    """Return a scenario whose driver stamps samples with the wall clock that `Readings` has."""
    from dataclasses import replace

    return replace(scenario, stamps="epoch", stamp_base_s=EPOCH_NS / 1e9)


def as_torch(gpu: Gpu, index: int = 0, **changes: Any) -> TorchDevice:
    """Return a GPU as torch would tell of it."""
    known: dict[str, Any] = {
        "index": index, "name": gpu.name, "uuid": gpu.uuid.removeprefix("GPU-"), "bus": gpu.bus,
        "memory_bytes": gpu.memory_bytes,
    }  # fmt: skip
    return TorchDevice(**(known | changes))


def messages(caplog: pytest.LogCaptureFixture, *words: str, level: int = logging.INFO) -> list[str]:
    """Return what was logged at a level, or above it, with all of some words in it."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= level and all(word in record.getMessage() for word in words)
    ]
