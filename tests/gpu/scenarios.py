"""Loops whose numbers are known: one table, for the fake device and for a real one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpu.rigs import batches

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu.rigs import Rig

__all__ = ["SCENARIOS", "Scenario"]

STEPS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A loop, and what must come of it."""

    name: str
    run: Callable[[Rig], None]
    data_pct: float
    """Share of the step in which the device had nothing to do for want of data."""

    device_s: float | None = None
    """Time of a step on the device."""

    wait_s: float | None = None
    """Time of a step in which the host waited for data."""

    copy_s: float | None = None
    lost: int = 0
    """Batches that may go without times of the device, at most."""


def _queued(wait_s: float, work_s: float) -> Callable[[Rig], None]:
    """Return a loop that queues its work and goes on."""

    def run(rig: Rig) -> None:
        for _ in rig.perf.steps(batches(rig, STEPS, wait_s), samples=8):
            rig.launch(work_s)

    return run


def _blocking(wait_s: float, work_s: float) -> Callable[[Rig], None]:
    """Return a loop that waits for its work, as one does that prints its loss."""

    def run(rig: Rig) -> None:
        for _ in rig.perf.steps(batches(rig, STEPS, wait_s), samples=8):
            rig.launch(work_s)
            rig.block()

    return run


def _fetch_in_the_middle(rig: Rig) -> None:
    for place in range(STEPS):
        with rig.perf.step(samples=8):
            if place == 0:
                rig.perf._find_device()
            with rig.perf.data():
                rig.rest(0.1)
            rig.launch(0.1)
            rig.block()


def _evaluation(rig: Rig) -> None:
    for place, _ in enumerate(rig.perf.steps(batches(rig, STEPS, 0.1), samples=8)):
        rig.launch(0.2)
        rig.block()
        if place % 20 == 4:
            with rig.perf.phase("eval"):
                rig.launch(3.0)
                rig.block()


def _copies(rig: Rig) -> None:
    for _ in rig.perf.steps(batches(rig, STEPS, 0.0), samples=8):
        with rig.perf.transfer():
            rig.launch(0.05)
        rig.launch(0.2)
        rig.block()


def _captures(rig: Rig) -> None:
    for place, _ in enumerate(rig.perf.steps(batches(rig, STEPS, 0.1), samples=8)):
        if place == 20:
            with rig.capture(), rig.perf.phase("log"), rig.perf.transfer():
                rig.launch(0.01)
        rig.launch(0.2)
        rig.block()


SCENARIOS: Final = (
    Scenario(name="hidden", run=_queued(0.15, 0.2), data_pct=0.0, device_s=0.2, wait_s=0.15),
    Scenario(name="starving", run=_queued(0.3, 0.1), data_pct=100 * 2 / 3, device_s=0.3, wait_s=0.3),
    Scenario(name="a third", run=_blocking(0.1, 0.2), data_pct=100 / 3, device_s=0.3, wait_s=0.1),
    Scenario(name="most of it", run=_blocking(0.5, 0.2), data_pct=500 / 7, device_s=0.7, wait_s=0.5),
    Scenario(name="a fetch in the middle", run=_fetch_in_the_middle, data_pct=50.0, wait_s=0.1, lost=1),
    Scenario(name="an evaluation", run=_evaluation, data_pct=100 / 3, device_s=0.3),
    Scenario(name="copies", run=_copies, data_pct=0.0, device_s=0.25, copy_s=0.05),
    Scenario(name="a capture", run=_captures, data_pct=100 / 3, device_s=0.3, lost=2),
)
"""Seconds of `METRICS`: 0.1 s of wait beside 0.2 s of work are 33.3 %, 0.5 s are 71.4 %, and so on."""
