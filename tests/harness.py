"""A run on a fake clock, and what tests ask it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trackperf.collector import Collector
from trackperf.config import settings_from
from trackperf.run import Run
from trackperf.testing import FakeClock, MemorySink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from trackperf.record import RunSummary
    from trackperf.sink import Sink

__all__ = ["Bench", "Maker"]


@dataclass
class Bench:
    """A run whose time only passes when it is told to."""

    perf: Collector
    clock: FakeClock
    sink: MemorySink

    def loader(self, batches: Iterable[Any], wait_s: float | Iterable[float] = 0.0) -> Iterator[Any]:
        """Yield batches, each after a wait."""
        waits = iter(wait_s) if not isinstance(wait_s, float) else None
        for batch in batches:
            self.clock.advance(wait_s if isinstance(wait_s, float) else next(waits))  # type: ignore[arg-type]
            yield batch

    def values(self, key: str) -> list[float]:
        """Return the values of a series."""
        return [value for _, value in self.sink.series(key)]

    def last(self, key: str) -> float:
        """Return the last value of a series."""
        return self.values(key)[-1]

    def total(self) -> RunSummary:
        """End the run and return its summary."""
        self.perf.finish()
        assert self.sink.summary is not None
        return self.sink.summary


class Maker:
    """Makes runs on a fake clock, with no warm-up unless asked for one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, clock: FakeClock | None = None, sinks: Iterable[Sink] = (), **options: Any) -> Bench:
        """Return a new run; no reporter thread, so that nothing happens but what the test does."""
        clock = clock or FakeClock()
        sink = MemorySink()
        given = {"warmup_steps": 0, "dir": self.folder / "runs", **options}
        run = Run(settings_from(given, {}), [sink, *sinks], clock=clock, wall=clock.seconds)
        run.reporter._output.start()
        return Bench(Collector(run), clock, sink)
