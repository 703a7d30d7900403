"""What the device's own clock says, on a device that works through a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from fakecuda import Device

from trackperf import devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness import Bench, Maker

    from trackperf.timing.device import DeviceTimeline
    from trackperf.timing.marks import Marks


@dataclass
class Rig:
    """A run whose training uses a device."""

    run: Bench
    device: Device

    @property
    def timeline(self) -> DeviceTimeline:
        """The device's timeline, once it is in use."""
        assert self.run.perf._marks.device is not None
        return self.run.perf._marks.device


@pytest.fixture
def rig(bench: Maker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rig]:
    """Return a maker of runs on a fake device."""

    def make(limit: int = 256, **options: Any) -> Rig:
        run = bench(**options)
        device = Device(run.clock)

        def found(marks: Marks) -> DeviceTimeline:
            return device.timeline(marks, limit)

        run.perf._find = found
        monkeypatch.setattr("trackperf.reporter.accelerator_in_use", lambda: "cuda")
        return Rig(run, device)

    return make


class TestExposed:
    """The wait that counts is the one in which the device had nothing to do."""

    def test_a_wait_under_queued_work_is_hidden(self, rig: Callable[..., Rig]) -> None:
        """Device compute of 0.2 s a step over a host wait of 0.15 s: exposed 0, no alert."""
        r = rig()
        for _ in r.run.perf.steps(r.run.loader([8] * 100, 0.15), samples=8):
            r.device.launch(0.2)
            r.run.clock.advance(0.05)
        summary = r.run.total()
        assert summary.metrics["perf/data_pct"].mean == pytest.approx(0, abs=1e-9)
        assert summary.metrics["perf_data/exposed_ms"].mean == pytest.approx(0, abs=1e-9)
        assert summary.metrics["perf/data_wait_ms"].mean == pytest.approx(150)
        assert summary.metrics["perf_step/device_ms"].mean == pytest.approx(200)
        assert summary.alerts == ()
        assert r.device.synchronisations == 0

    def test_a_starving_device(self, rig: Callable[..., Rig]) -> None:
        """A wait of 0.3 s over 0.1 s of device work exposes 0.2 s of 0.3 s, and raises the alert."""
        r = rig()
        for _ in r.run.perf.steps(r.run.loader([8] * 100, 0.3), samples=8):
            r.device.launch(0.1)
        summary = r.run.total()
        assert summary.metrics["perf/data_pct"].mean == pytest.approx(100 * 0.2 / 0.3)
        assert summary.metrics["perf_data/exposed_ms"].mean == pytest.approx(200)
        assert [alert.rule for alert in summary.alerts] == ["loader_latency"]

    def test_a_blocking_read_is_no_data_time(self, rig: Callable[..., Rig]) -> None:
        """
        Launches return after 2 ms, the fetch takes 1 ms, `.item()` then blocks for the rest of 50 ms of
        device time: the data latency is 1 ms of 51, the device's step 50 ms of work and 1 ms of waiting.
        """
        r = rig()
        for _ in r.run.perf.steps(r.run.loader([8] * 200, 0.001), samples=8):
            r.device.launch(0.05)
            r.run.clock.advance(0.002)
            r.device.synchronize()
        metrics = r.run.total().metrics
        assert metrics["perf/step_ms"].mean == pytest.approx(51)
        assert metrics["perf/data_wait_ms"].mean == pytest.approx(1)
        assert metrics["perf/data_pct"].mean == pytest.approx(100 / 51)
        exposed, device = metrics["perf_data/exposed_ms"].mean, metrics["perf_step/device_ms"].mean
        assert device - exposed == pytest.approx(50)

    def test_a_fetch_in_the_middle_of_a_step(self, rig: Callable[..., Rig]) -> None:
        """A fetch in `data()` is bracketed in the same way: hidden under queued work, exposed without."""
        for work, pct in ((0.3, 0.0), (0.0, 50.0)):
            r = rig(alerts=False)
            for place in range(60):
                with r.run.perf.step(samples=8):
                    if place == 0:
                        r.run.perf._find_device()
                    r.device.launch(work)
                    with r.run.perf.data():
                        r.run.clock.advance(0.1)
                    r.device.launch(0.1)
                    r.device.synchronize()
            assert r.run.total().metrics["perf/data_pct"].mean == pytest.approx(pct, abs=1e-6)

    def test_evaluation_is_taken_out(self, rig: Callable[..., Rig]) -> None:
        """Device work in a phase inside a step is none of the step's, nor is it a wait."""
        r = rig(alerts=False)
        for place, _ in enumerate(r.run.perf.steps(r.run.loader([8] * 60, 0.05), samples=8)):
            r.device.launch(0.1)
            if place % 10 == 4:
                with r.run.perf.phase("eval"):
                    r.device.launch(3.0)
                    r.device.synchronize()
        metrics = r.run.total().metrics
        assert metrics["perf_step/device_ms"].mean == pytest.approx(100, rel=0.06)
        assert metrics["perf/data_pct"].mean < 6

    def test_copies(self, rig: Callable[..., Rig]) -> None:
        """A copy in `transfer()` is timed on the device."""
        r = rig(alerts=False)
        for _ in r.run.perf.steps(r.run.loader([8] * 60), samples=8):
            with r.run.perf.transfer():
                r.device.launch(0.02)
            r.device.launch(0.1)
            r.run.clock.advance(0.12)
        assert r.run.total().metrics["perf_data/h2d_ms"].mean == pytest.approx(20)


class TestLoopless:
    """Steps that are marked by themselves."""

    def test_a_pause_between_steps_is_no_wait(self, rig: Callable[..., Rig]) -> None:
        """What a device does not do between two `step()` is no wait for data: the share is absent."""
        r = rig(alerts=False)
        for place in range(60):
            with r.run.perf.step(samples=8):
                if place == 0:
                    r.run.perf._find_device()
                r.device.launch(0.1)
                r.device.synchronize()
            r.run.clock.advance(0.1)
        assert "perf/data_pct" not in r.run.total().metrics


class TestLate:
    """Events are read late, and never waited for."""

    def test_a_backlog_melts(self, rig: Callable[..., Rig]) -> None:
        """Forty batches that waited for the device are timed within a few windows after it has caught up."""
        r = rig(alerts=False)
        for place, _ in enumerate(r.run.perf.steps(r.run.loader([8] * 100), samples=8)):
            if place < 40:
                r.device.launch(1.0)
            elif place == 40:
                r.device.synchronize()
            r.run.clock.advance(0.01 if place < 40 else 0.5)
        assert r.timeline.waiting <= 2

    def test_a_queue_three_steps_deep(self, rig: Callable[..., Rig]) -> None:
        """The host runs 3 steps ahead: every step is timed all the same, the last ones at the end."""
        r = rig(warmup_steps=0, interval_s=0.1)
        for place, _ in enumerate(r.run.perf.steps(r.run.loader([1] * 100), samples=1)):
            r.device.launch(0.005)
            if place >= 3:
                r.run.clock.now_ns = max(r.run.clock.now_ns, r.device.tail_ns - 15_000_000)
        ahead = r.timeline.waiting
        assert 1 <= ahead <= 6
        r.run.clock.advance(0.1)
        summary = r.run.total()
        assert r.timeline.waiting == 0
        assert r.timeline.lost == 0
        assert r.device.synchronisations == 0
        assert summary.metrics["perf_step/device_ms"].mean == pytest.approx(5)
        assert len(r.device.events) < 40

    def test_events_that_are_never_passed(self, rig: Callable[..., Rig]) -> None:
        """A batch whose events are never passed loses its own times; those behind it are timed."""
        r = rig(limit=8, alerts=False)
        for place, _ in enumerate(r.run.perf.steps(r.run.loader([1] * 100), samples=1)):
            r.device.stuck = place == 20
            r.device.launch(0.05)
            r.run.clock.advance(0.05)
        summary = r.run.total()
        assert 1 <= r.timeline.lost <= 4
        assert summary.dropped["device_times"] == r.timeline.lost
        assert summary.steps == 100
        assert summary.metrics["perf_step/device_ms"].mean == pytest.approx(50)
        assert len(r.device.events) < 60

    def test_a_broken_device(self, rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture) -> None:
        """A device that fails at every call costs one warning, and the host's numbers stand."""
        r = rig(alerts=False)
        for place, _ in enumerate(r.run.perf.steps(r.run.loader([1] * 300), samples=1)):
            r.device.broken = place >= 10
            r.run.clock.advance(0.1)
        summary = r.run.total()
        assert summary.steps == 300
        assert summary.metrics["perf/step_ms"].mean == pytest.approx(100)
        assert len([one for one in caplog.records if "it is not timed" in one.getMessage()]) == 1

    def test_a_failure_that_passes(self, rig: Callable[..., Rig]) -> None:
        """After a failure of some steps the device is timed again."""
        r = rig(alerts=False)
        for place, _ in enumerate(r.run.perf.steps(r.run.loader([1] * 100), samples=1)):
            r.device.broken = 10 <= place < 20
            r.device.launch(0.1)
            r.run.clock.advance(0.1)
        summary = r.run.total()
        assert 10 <= r.timeline.lost <= 13
        assert summary.metrics["perf_step/device_ms"].mean == pytest.approx(100)

    def test_a_capture(self, rig: Callable[..., Rig]) -> None:
        """While a graph is captured nothing is recorded and nothing is asked."""
        r = rig(alerts=False)
        for place, _ in enumerate(r.run.perf.steps(r.run.loader([1] * 60), samples=1)):
            if 10 <= place < 20:
                r.device.capturing = True
                before = (r.device.records, r.device.queries)
            else:
                r.device.capturing = False
            r.device.launch(0.1)
            r.run.clock.advance(0.1)
            with r.run.perf.phase("log"), r.run.perf.transfer():
                pass
            if 10 < place < 20:
                assert (r.device.records, r.device.queries) == before
        summary = r.run.total()
        assert summary.steps == 60
        assert summary.metrics["perf_step/device_ms"].mean == pytest.approx(100)

    def test_another_device_in_the_middle(self, rig: Callable[..., Rig]) -> None:
        """A batch whose two ends are on two devices loses its times; no event is used on the wrong device."""
        r = rig(alerts=False)
        for place, _ in enumerate(r.run.perf.steps(r.run.loader([1] * 60), samples=1)):
            r.device.launch(0.1)
            r.run.clock.advance(0.1)
            if place in (20, 40):
                r.device.index = 1 - r.device.index
        summary = r.run.total()
        assert 2 <= r.timeline.lost <= 4
        assert summary.metrics["perf_step/device_ms"].mean == pytest.approx(100)

    def test_a_body_that_raises(self, rig: Callable[..., Rig]) -> None:
        """A loop that ends in an exception, then another loop: the pair that was cut is not timed."""
        r = rig(alerts=False)
        with pytest.raises(RuntimeError, match="the user's own"):
            for place, _ in enumerate(r.run.perf.steps(r.run.loader([1] * 30), samples=1)):
                r.device.launch(0.1)
                r.run.clock.advance(0.1)
                if place == 20:
                    raise RuntimeError("the user's own")
        r.run.clock.advance(60.0)
        for _ in r.run.perf.steps(r.run.loader([1] * 30), samples=1):
            r.device.launch(0.1)
            r.run.clock.advance(0.1)
        metrics = r.run.total().metrics
        assert metrics["perf_step/device_ms"].p95 == pytest.approx(100)
        assert metrics["perf/data_pct"].mean == pytest.approx(0, abs=1e-9)


def test_a_compiled_step_keeps_its_graph(rig: Callable[..., Rig]) -> None:
    """A step compiled with `fullgraph=True` works inside the loop, and is compiled once."""
    import torch

    compiled = 0

    def backend(graph: Any, _inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def step(batch: torch.Tensor) -> torch.Tensor:
        return (batch @ batch.T).relu().sum()

    r = rig(alerts=False)
    for batch in r.run.perf.steps([torch.ones(4, 4)] * 20):
        with r.run.perf.phase("forward"):
            step(batch)
        r.device.launch(0.1)
        r.run.clock.advance(0.1)
    assert compiled == 1
    assert r.run.total().steps == 20


def test_no_device_on_a_cpu() -> None:
    """Where torch has no device there is no timeline, and nothing is initialised to find that out."""
    from trackperf.timing.marks import Marks as RealMarks

    assert devices.accelerator.accelerator_in_use() is None
    assert devices.accelerator.device_timeline(RealMarks()) is None
