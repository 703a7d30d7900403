"""
What travels between the parts: a few frozen values, and nothing that acts.

A `Point` goes from the reporter to every sink; an `Alert` beside it; a `RunInfo`
once, when a sink opens; a `RunSummary` once, when it closes. Readers build the same
values back from a tracker's store.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SCHEMA_VERSION", "Alert", "Level", "Point", "RunInfo", "RunSummary", "Stat", "Status"]

SCHEMA_VERSION: Final = 1
"""Version of the keys and fields that a run is written with."""

Level: TypeAlias = Literal["notice", "warning"]
"""How loud an alert is."""

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


class Status(str, enum.Enum):
    """How a run ended."""

    FINISHED = "finished"
    """It came to its end."""

    FAILED = "failed"
    """An exception ended it."""

    KILLED = "killed"
    """A signal or a keyboard interrupt ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Values of one or several whole windows, at a step of the run."""

    step: int
    """Finished steps at the end of the last window, going on across a resume."""

    wall_time: float
    """Seconds since the epoch at that moment."""

    values: Mapping[str, float]
    """Value by series key. Every value is finite; what was not measured is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A rule that was raised or cleared, with its evidence and what to do about it."""

    rule: str
    """Name of the rule, such as `loader_latency`."""

    state: Literal["raised", "cleared"]
    """Whether the condition began or ended."""

    level: Level
    """How loud it is."""

    step: int
    """Finished steps when it changed."""

    wall_time: float
    """Seconds since the epoch when it changed."""

    value: float
    """The value that the rule judged, in the unit of its series."""

    threshold: float
    """The limit it was judged against, in the same unit."""

    cause: str
    """One sentence: what is wrong, on what evidence."""

    advice: str = ""
    """One sentence: what to change; empty when the alert cleared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a run is: its name, its place, and what makes it comparable with others."""

    run_id: str
    """Identity of the run, kept across a resume (32 hexadecimal digits)."""

    name: str
    """Name of the run; also its folder below `dir`."""

    dir: str
    """Folder that holds local files of runs."""

    started_at: float
    """Seconds since the epoch when this process began the run or went on with it."""

    prefix: str = "perf"
    """What the keys of the headline section begin with."""

    resume_step: int | None = None
    """Steps already finished when this process took the run over; None for a new run."""

    world_size: int = 1
    """Number of training processes in the job."""

    config: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    """The user's own settings, as given to `init(config=)`."""

    tags: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """The user's own tags: what makes runs comparable."""

    environment: Mapping[str, str | int | float | bool] = field(default_factory=lambda: _EMPTY)
    """Facts of machine and software: host, cpus, python, torch, gpu, commit, ..."""

    loader: Mapping[str, str | int | float | bool] = field(default_factory=lambda: _EMPTY)
    """Settings of the first loader: batch_size, num_workers, pin_memory, ..."""

    absent: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """Series key to the reason why this run does not measure it."""

    names: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """Safe series key to the name that the user gave (`observe`), where the two differ; it may grow while
    the run goes on."""

    schema_version: int = SCHEMA_VERSION
    """Version of the keys and fields that the run is written with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One metric over the steady windows of a run."""

    mean: float
    """Mean; for a rate the sum of counts over the sum of times, never a mean of rates."""

    p50: float
    """Median of the windows' values."""

    p95: float
    """95th percentile of the windows' values."""

    n: int
    """Number of windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a few numbers, over its steady windows (warm-up and other phases apart)."""

    steps: int
    """Finished steps, earlier parts of a resumed run included."""

    samples: int | None
    """Samples of those steps; None when the batch size was not known."""

    tokens: int | None = None
    """Tokens of those steps; None when the user did not say what a token is."""

    metrics: Mapping[str, Stat] = field(default_factory=lambda: _EMPTY)
    """Series key to its statistics."""

    phases: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    """Seconds in each phase; they add up to the wall time."""

    alerts: tuple[Alert, ...] = ()
    """Alerts raised, in order."""

    to_goal_s: float | None = None
    """Training seconds until the goal was first reached; None when it was not."""

    to_goal_steps: int | None = None
    """Steps until the goal was first reached; None when it was not."""

    dropped: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    """What was lost, by kind (`points/<sink>`, `marks`, `values`); empty when nothing was."""

    names: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """Safe series key to the name that the user gave (`observe`), where the two differ."""

    @property
    def train_s(self) -> float:
        """Seconds in `warmup` and `train`, earlier parts of a resumed run included."""
        return self.phases.get("warmup", 0.0) + self.phases.get("train", 0.0)
