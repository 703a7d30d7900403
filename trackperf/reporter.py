"""
The reporter: takes marks, closes windows, computes values, judges alerts, and hands points to the sinks.

Everything here runs on a thread of its own, except what `finish`, `state` and `summary` do on the caller's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from trackperf import exits
from trackperf.devices.accelerator import accelerator_in_use
from trackperf.devices.gpu import GpuReadings
from trackperf.devices.host import HostReadings
from trackperf.flops import Flops
from trackperf.judge import Judge
from trackperf.observations import Observations
from trackperf.output import Output
from trackperf.points import PointMaker, Ready
from trackperf.record import Alert, RunInfo, RunSummary, Status
from trackperf.statistics import RunStatistics
from trackperf.timing.join import DeviceJoin
from trackperf.timing.marks import Batch, Clock, Marks
from trackperf.timing.timeline import WINDOW_NS, Timeline
from trackperf.values import window_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackperf.config import Settings
    from trackperf.loaders import LoaderFacts
    from trackperf.progress import ProgressLine
    from trackperf.sink import Sink
    from trackperf.timing.windows import Totals, Window

__all__ = ["Reporter"]

_log: Final = logging.getLogger("trackperf")
_CLOSE_S: Final = 5.0
_LOCK_S: Final = 2.0
_IDLE_S: Final = 1.0
_DEVICE_S: Final = 0.5
_POINTS: Final = 5000


class Reporter:
    """One run's reporter."""

    def __init__(
        self,
        settings: Settings,
        sinks: Sequence[Sink],
        describe: Callable[[], RunInfo],
        *,
        prepare: Callable[[], object] | None = None,
        rank: int = 0,
        world_size: int = 1,
        clock: Clock = time.perf_counter_ns,
        wall: Callable[[], float] = time.time,
        progress: ProgressLine | None = None,
    ) -> None:
        """
        Args:
            settings: checked settings.

            sinks: where points go; none on ranks other than 0.

            describe: makes the run's description when the sinks open.

            prepare: looks at the machine, first thing on the reporter's thread.

            rank: this process's rank.

            world_size: number of ranks.

            clock: monotonic nanoseconds.

            wall: seconds since the epoch.

            progress: the line to keep up to date.
        """
        window_ns = WINDOW_NS
        if settings.interval_s is not None:
            window_ns = min(window_ns, max(1, round(settings.interval_s * 1e9)))
        self.marks = Marks(clock)
        self.timeline = Timeline(begin_ns=clock(), warmup_steps=settings.warmup_steps, window_ns=window_ns)
        self.marks.wake_at = clock() + window_ns
        self.resume_step: int | None = None
        self.observations = Observations(settings.goal)
        self.world_size = world_size
        self.rank = rank
        self._settings = settings
        self._prepare = prepare
        self._clock = clock
        self._window_ns = window_ns
        self._output = Output(sinks, describe, prefix=settings.prefix, clock=clock, wall=wall)
        self._judge = Judge(settings.rules if rank == 0 else ())
        self._host = HostReadings()
        self.gpus = GpuReadings(settings.devices, clock=clock)
        self.flops = Flops(
            settings,
            devices=self.gpus.describe,
            world_size=world_size,
            apart=partial(getattr, self.marks, "in_phase"),
        )
        self._join = DeviceJoin()
        self._statistics = RunStatistics()
        self._progress = progress
        self._points = PointMaker(
            interval_s=settings.interval_s, total_steps=settings.total_steps, world_size=world_size
        )
        self._last_values: dict[str, float] = {}
        self._lock = threading.Lock()
        self._once = threading.Lock()
        self._stop = False
        self._summary: tuple[RunSummary, Status] | None = None
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Alerts so far, in order."""
        return tuple(self._judge.alerts)

    @property
    def loader(self) -> LoaderFacts | None:
        """What the run's first loader is; None before it is known."""
        return self._judge.loader

    @loader.setter
    def loader(self, facts: LoaderFacts) -> None:
        self._judge.loader = facts

    def start(self) -> None:
        """Start the threads; they are daemons, and `exits` sees to it that the run gets its end."""
        self._output.start()
        if self.rank == 0:
            self.gpus.start()
        self._thread = threading.Thread(target=self._run, name="trackperf-reporter", daemon=True)
        self._thread.start()
        exits.watch(self)

    def tick(self) -> None:
        """Take the marks that are there and report what they close."""
        with self._lock:
            now = self._clock()
            self._report(self._take(now))
            if self.timeline.begun and not self.flops.counted.begun:
                # The run shows before its first window is full, and at exit nothing is imported any more.
                self._output.open()
            due = self.timeline.due_ns
            self.marks.wake_at = now + self._window_ns if due is None or due <= now else due
        if self._progress is not None:
            self._progress.update(self.timeline.steps, self._last_values)

    def resume(self, base: Totals, *, reached: tuple[int, float] | None) -> bool:
        """Go on from where an earlier part of the run ended; False when this part has begun already."""
        with self._lock:
            if self._output.opened or self.timeline.begun or self.marks.batches:
                return False
            self.timeline.resume(base)
            self.resume_step = base.steps
            self.observations.reached = reached
            return True

    def totals_now(self) -> Totals:
        """Return where the run stands, a step whose body runs counted as finished."""
        with self._lock:
            now, open_batch = self._clock(), self._open_batch()
            self._report(self._take(now))
            return self.timeline.totals_at(now, open_batch)

    def summary(self) -> RunSummary:
        """Return the run so far."""
        if self._summary is not None:
            return self._summary[0]
        with self._lock:
            self._report(self._take(self._clock()))
            return self._summarise(self.timeline.totals())

    def flush(self, timeout_s: float) -> bool:
        """Hand over the steps so far and wait until the sinks have them; whether they have."""
        if self._pid != os.getpid():
            return True
        deadline = time.monotonic() + timeout_s
        if self._lock.acquire(timeout=timeout_s):
            try:
                self._report(self._take(self._clock(), cut=True))
                self._write_pending()
            finally:
                self._lock.release()
        return self._output.flush(max(0.0, deadline - time.monotonic()))

    def finish(self, status: Status, *, count_open: bool = False) -> None:
        """
        End the run: the last window, the summary, and the sinks' end, within five seconds.

        Args:
            status: how it ended.

            count_open: count a body that runs as a finished step: its loop is left for good.
        """
        if self._pid != os.getpid():
            return
        if not self._once.acquire(blocking=False):
            if self._summary is not None:
                self._output.close(*self._summary, timeout_s=_CLOSE_S)
            return
        deadline = time.monotonic() + _CLOSE_S
        summary = RunSummary(steps=self.timeline.steps, samples=None)
        try:
            summary = self._end(count_open=count_open)
        except Exception:  # noqa: BLE001 - nothing of ours ends a training
            _log.exception("trackperf: the last window could not be written")
        self._summary = (summary, status)
        try:
            self._output.close(summary, status, timeout_s=max(0.1, deadline - time.monotonic()))
        except Exception:  # noqa: BLE001 - nothing of ours ends a training
            _log.exception("trackperf: the run could not be brought to its end")
        finally:
            exits.forget(self)
            self.gpus.close()
            if self._progress is not None:
                self._progress.close(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.1, deadline - time.monotonic()))

    def _end(self, *, count_open: bool) -> RunSummary:
        open_batch = self._open_batch() if count_open else None
        if threading.current_thread() is threading.main_thread():
            self._drain_device()
        if not self._lock.acquire(timeout=_LOCK_S):
            _log.warning("trackperf: the last window was not written: the reporter did not let go of it")
            self._halt()
            return RunSummary(steps=self.timeline.steps, samples=None)
        try:
            now = self._clock()
            windows = self._take(now)
            self._halt()
            last = self.timeline.finish(now, open_batch)
            self._read_machine(last)
            self._report(windows + self._join.feed(last, [], active=self._on_device, final=True))
            self._write_pending()
            self._write_observed(final=True)
            self._output.open()
            return self._summarise(self.timeline.totals())
        finally:
            self._lock.release()

    def _take(self, now_ns: int, *, cut: bool = False) -> list[Window]:
        """Take the marks that are there and return the windows that are complete."""
        moment_ns = self._clock()
        idle_ns = moment_ns if self.marks.owner is None else None
        drained = self.marks.drain()
        windows = self.timeline.feed(drained, self.marks.phases, now_ns, idle_ns)
        if cut:
            windows += self.timeline.cut()
        self._read_machine(windows)
        return self._join.feed(windows, drained.device_times, active=self._on_device, final=cut)

    def _read_machine(self, windows: list[Window]) -> None:
        """Read the machine for a window that has just closed; of several that closed together, the last."""
        if windows:
            last = windows[-1]
            last.read(self._host.read() | self.gpus.read(last.start_ns, last.end_ns))

    @property
    def _on_device(self) -> bool:
        return self.marks.device is not None

    def _drain_device(self) -> None:
        """At the end, and only there, give the device a moment for what it was told last."""
        device = self.marks.device
        until = time.monotonic() + _DEVICE_S
        while device is not None and device.drain() and time.monotonic() < until:
            time.sleep(0.001)

    def _open_batch(self) -> Batch | None:
        owner = self.marks.owner
        return owner.open_batch() if owner is not None else None

    def _halt(self) -> None:
        self._stop = True
        self.marks.close()
        self.marks.alarm.put(None)

    def _run(self) -> None:
        if self._prepare is not None:
            self._prepare()
        complained = False
        while True:
            with contextlib.suppress(queue.Empty):
                self.marks.alarm.get(timeout=_IDLE_S)
            if self._stop:
                return
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - see below
                # The training goes on, and so does what still works.
                if not complained:
                    _log.exception("trackperf: a window could not be reported")
                complained = True

    def _report(self, windows: list[Window]) -> None:
        """Take windows that closed: judge each, and write points as they are due."""
        accelerator = accelerator_in_use()
        for window in windows:
            if window.phase == "train":
                if self.rank == 0:
                    self.flops.weigh(window)
                values = window_values(window, world_size=self.world_size, accelerator=accelerator)
                values |= window.reading_values()
                self._statistics.add(window, values)
                for alert in self._judge.judge(window, values, self._output.wall_time(window.end_ns)):
                    self._output.alert(alert)
            due = self._points.add(
                window,
                flags=self._judge.flags(),
                warm=window.phase == "warmup" and self.timeline.own_steps >= self._settings.warmup_steps,
                accelerator=accelerator,
            )
            self._write_observed(until=due[0].step if due else None)
            self._write(due)
        self._write_observed()

    def _write_pending(self) -> None:
        self._write(self._points.flush(accelerator_in_use()))

    def _write(self, due: Sequence[Ready]) -> None:
        for point in due:
            dropped = float(self._output.dropped_points)
            values = point.values | self.observations.goal_values() | {"perf_self/dropped_points": dropped}
            self._last_values = values
            self._output.point(point.step, point.at_ns, values)

    def _write_observed(self, *, final: bool = False, until: int | None = None) -> None:
        for step, at_ns, key, value in self.observations.resolve(self.timeline, final=final, until=until):
            self._output.point(step, at_ns, {key: value})

    def _summarise(self, totals: Totals) -> RunSummary:
        goal = self.observations.reached
        lost = {
            "marks": self.timeline.invalid,
            "quantiles": self.timeline.bundled,
            "device_times": self._join.late
            + (self.marks.device.lost if self.marks.device is not None else 0),
            "values": self.observations.dropped,
        }
        dropped = {**self._output.dropped, **{kind: count for kind, count in lost.items() if count}}
        return RunSummary(
            steps=totals.steps,
            samples=totals.samples if totals.steps else None,
            tokens=totals.tokens if totals.steps else None,
            metrics=self._statistics.stats(self.world_size, accelerator_in_use(), self._settings.prefix),
            phases={name: ns * 1e-9 for name, ns in totals.phase_ns.items()},
            alerts=self.alerts,
            to_goal_steps=goal[0] if goal else None,
            to_goal_s=goal[1] if goal else None,
            dropped=dropped,
            names=dict(self.observations.names),
        )
