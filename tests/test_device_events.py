"""The device's timeline, batch by batch: what is lost, what is not, and what comes after."""

from __future__ import annotations

import pytest
from fakecuda import Device

from trackperf.testing import FakeClock
from trackperf.timing.device import DEVICE_STRIDE
from trackperf.timing.marks import Marks


class Rig:
    """A device and its timeline."""

    def __init__(self, limit: int = 256) -> None:
        self.clock = FakeClock()
        self.device = Device(self.clock)
        self.marks = Marks(self.clock)
        self.timeline = self.device.timeline(self.marks, limit)

    def batch(self, key: int, *, pause: float = 0.0) -> None:
        """Let a batch come after a pause, and its body take a second of the device."""
        self.clock.advance(pause)
        self.timeline.ready()
        self.device.launch(1.0)
        self.device.synchronize()
        self.timeline.done(key)

    def exposed(self) -> dict[int, float]:
        """Return the exposed wait by key, in seconds; negative where it is not known."""
        times = self.marks.device_times
        return dict(zip(map(int, times[::DEVICE_STRIDE]), times[1::DEVICE_STRIDE], strict=True))


def test_another_device_in_the_midst_of_it() -> None:
    """The batch with which the training moves to another device has no wait; none is lost before or after."""
    rig = Rig()
    for key in range(5):
        rig.batch(key, pause=0.5)
    rig.device.index = 1
    for key in range(5, 10):
        rig.batch(key, pause=0.5)
    rig.timeline.drain()
    assert rig.timeline.lost == 0
    known = {key: wait for key, wait in rig.exposed().items() if wait >= 0}
    assert known == pytest.approx({key: 500.0 for key in range(10) if key not in (0, 5)})


def test_a_batch_that_is_never_passed_holds_up_no_other() -> None:
    """A usual batch whose events are never passed is given up when too many wait behind it."""
    rig = Rig(limit=5)
    for key in range(3):
        rig.batch(key)
    rig.device.stuck = True
    rig.batch(3)
    rig.device.stuck = False
    for key in range(4, 20):
        rig.batch(key)
    assert rig.timeline.waiting <= 7
    rig.timeline.drain()
    assert rig.timeline.lost <= 2
    assert {key for key, wait in rig.exposed().items() if wait >= 0} >= set(range(5, 20))


def test_failures_far_apart_do_not_end_it() -> None:
    """A failure now and then, hundreds in all, costs its own batch and no more."""
    rig = Rig()
    for round_ in range(150):
        rig.device.broken = True
        rig.timeline.ready()
        rig.device.broken = False
        for key in range(3):
            rig.batch(3 * round_ + key)
    rig.timeline.drain()
    assert rig.timeline.waiting == 0
    assert len(rig.exposed()) == 450
    assert rig.exposed()[449] == 0


def test_failures_without_end_are_the_end_of_it() -> None:
    """A device that fails a hundred times in a row is not asked any more."""
    rig = Rig()
    rig.device.broken = True
    for key in range(200):
        rig.timeline.ready()
        rig.timeline.done(key)
    rig.device.broken = False
    before = rig.device.records
    rig.batch(200)
    assert rig.device.records == before


def test_the_time_between_steps_without_a_loader_is_no_fetch() -> None:
    """Where a body is left and the next begun anew, the pause between them is not known to be a wait."""
    rig = Rig()
    for key in range(5):
        rig.timeline.leave()
        rig.batch(key, pause=0.5)
    rig.timeline.drain()
    assert set(rig.exposed().values()) == {-1}
