"""From settings to a run: its name and place, its sinks, its reporter, and what is known about it."""

from __future__ import annotations

import logging
import time
import uuid
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trackperf import environment
from trackperf.collector import Collector
from trackperf.config import settings_from
from trackperf.devices.accelerator import accelerator_in_use
from trackperf.devices.facts import gpu_facts
from trackperf.distributed import in_loader_worker, rank_and_world
from trackperf.flops import MFU
from trackperf.metrics import full_key
from trackperf.place import release, reserve
from trackperf.progress import ProgressLine
from trackperf.record import Alert, Point, RunInfo, RunSummary, Status
from trackperf.registry import load_sink
from trackperf.reporter import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackperf.config import Settings
    from trackperf.sink import Sink
    from trackperf.timing.marks import Clock

__all__ = ["Run", "begin"]

T = TypeVar("T")

_log: Final = logging.getLogger("trackperf")


class Run:
    """One run of this process."""

    def __init__(
        self,
        settings: Settings,
        sinks: Sequence[Sink],
        *,
        clock: Clock = time.perf_counter_ns,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            settings: checked settings.

            sinks: where points go.

            clock: monotonic nanoseconds.

            wall: seconds since the epoch.
        """
        self.run_id = uuid.uuid4().hex
        self.tokens_are: str | None = None
        self._facts: dict[str, environment.Fact] | None = None
        self._settings = settings
        self._started_at = wall()
        rank, world_size = rank_and_world()
        first = rank == 0
        self.name = reserve(settings.dir, settings.name) if first else settings.name or f"rank-{rank}"
        listeners: list[Sink] = [*sinks] if first else []
        if first and settings.on_alert is not None:
            listeners.append(_Callback(settings.on_alert))
        self.reporter = Reporter(
            settings,
            listeners,
            self._describe,
            prepare=self._look_around,
            rank=rank,
            world_size=world_size,
            clock=clock,
            wall=wall,
            progress=ProgressLine(total_steps=settings.total_steps) if settings.progress and first else None,
        )

    def rejoin(self, run_id: str, name: str) -> None:
        """Become the run that a state was taken from, unless the user named another."""
        asked = self._settings.name
        if asked is not None and asked != name:
            return
        self.run_id = run_id
        if self.reporter.rank == 0 and self.name != name:
            release(self._settings.dir, self.name)
        self.name = name

    @property
    def _counts_tokens(self) -> bool:
        """Whether tokens are counted, as far as a loop has said by now."""
        return self.tokens_are is not None or self.reporter.loader is None

    def _look_around(self) -> None:
        self._facts = _guarded(environment.facts)

    def _describe(self) -> RunInfo:
        """Return what is known when the sinks open: late, so that the loader is known too."""
        reporter = self.reporter
        absent = {**_guarded(environment.absent_reasons), **_guarded(reporter.gpus.absent)}
        absent.pop(MFU, None)
        absent |= _guarded(lambda: reporter.flops.absent(tokens_known=self._counts_tokens))
        if reporter.world_size > 1:
            absent["perf/samples_per_s"] = "a rate of all ranks together is not in this version"
        if accelerator_in_use() is not None and reporter.marks.device is None:
            reason = "the host's clock cannot tell what the device waits for, and it has no events to ask"
            absent["perf/data_pct"] = absent["perf_data/exposed_ms"] = absent["perf_data/h2d_ms"] = reason
        facts = dict(self._facts if self._facts is not None else _guarded(environment.facts))
        facts |= _guarded(lambda: gpu_facts(reporter.gpus.describe())) | _guarded(reporter.flops.facts)
        if self.tokens_are is not None:
            facts["tokens_are"] = self.tokens_are
        if self._settings.goal is not None:
            facts["goal"] = str(self._settings.goal)
        for key, reason in absent.items():
            _log.info("trackperf: %s is not measured: %s", key, reason)
        loader: Mapping[str, Any] = reporter.loader.as_mapping() if reporter.loader is not None else {}
        prefix = self._settings.prefix
        return RunInfo(
            run_id=self.run_id,
            name=self.name,
            dir=str(self._settings.dir),
            started_at=self._started_at,
            prefix=prefix,
            resume_step=reporter.resume_step,
            world_size=reporter.world_size,
            config=self._settings.config,
            tags=self._settings.tags,
            environment=facts,
            loader=loader,
            absent={full_key(key, prefix): reason for key, reason in absent.items()},
            names=MappingProxyType(reporter.observations.names),
        )


def begin(given: Mapping[str, Any]) -> Collector:
    """
    Return the collector of a new run.

    Raises:
        ConfigError, NotAvailableError, SinkError: see `trackperf.init`.
    """
    settings = settings_from(given)
    if not settings.enabled or in_loader_worker():
        return Collector(None)
    run = Run(settings, [load_sink(sink) for sink in settings.sinks])
    collector = Collector(run)
    run.reporter.start()
    return collector


def _guarded(ask: Callable[[], Mapping[str, T]]) -> dict[str, T]:
    """Facts are an extra: a machine that will not tell them is no reason to measure nothing."""
    try:
        return dict(ask())
    except Exception:  # noqa: BLE001 - see above
        _log.warning("trackperf: the facts of this machine are incomplete", exc_info=True)
        return {}


class _Callback:
    """The user's `on_alert`, guarded and on a thread of its own like any sink."""

    name = "on_alert"

    def __init__(self, call: Callable[[Alert], object]) -> None:
        self._call = call

    def open(self, run: RunInfo) -> None:
        """Take no notice."""

    def write(self, points: Sequence[Point]) -> None:
        """Take no notice."""

    def alert(self, alert: Alert) -> None:
        """Tell the user's function."""
        self._call(alert)

    def close(self, summary: RunSummary, status: Status) -> None:
        """Take no notice."""
