"""The figures of one run as listings and comparisons need them, from its summary or else from its points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from trackperf.metrics import CATALOGUE, HEADLINE, full_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackperf.history import RunHistory, Series

__all__ = ["Figures", "figures"]

_TOTAL = "perf/train_s"
"""A headline series that grows over the run: its last value counts, not its median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a run came to. None, or no entry, for what it did not measure or did not store."""

    medians: Mapping[str, float]
    """Median over the steady windows by catalogue key, for the headline series but training time."""

    windows: int
    """Windows behind the medians, of the series that has most."""

    steps: int | None
    """Finished steps."""

    samples: int | None
    """Samples of those steps; only a summary knows them."""

    samples_per_step: float | None
    """Mean number of samples in a step."""

    train_s: float | None
    """Training time, warm-up included."""

    warmup_s: float | None
    """The part of it that was warm-up."""

    to_goal_s: float | None
    """Training time when the goal was first reached."""

    to_goal_steps: int | None
    """Steps when the goal was first reached."""


def figures(history: RunHistory) -> Figures:
    """Return the figures of a run."""
    summary = history.summary
    medians: dict[str, float] = {}
    windows = 0
    for metric in HEADLINE:
        if metric.key == _TOTAL:
            continue
        found = _median(history, metric.key)
        if found is not None:
            medians[metric.key], n = found
            windows = max(windows, n)
    steps = summary.steps if summary else _last_step(history)
    samples = summary.samples if summary else None
    goal_steps = summary.to_goal_steps if summary else _last(history, "perf_time/to_goal_steps")
    return Figures(
        medians=MappingProxyType(medians),
        windows=windows,
        steps=steps,
        samples=samples,
        samples_per_step=_samples_per_step(history, steps, samples),
        train_s=summary.train_s if summary and summary.phases else _last(history, _TOTAL),
        warmup_s=summary.phases.get("warmup") if summary else _last(history, "perf_time/warmup_s"),
        to_goal_s=summary.to_goal_s if summary else _last(history, "perf_time/to_goal_s"),
        to_goal_steps=None if goal_steps is None else round(goal_steps),
    )


def series(history: RunHistory, key: str) -> Series | None:
    """Return the series of a catalogue key, whatever prefix the run was written with; None if it has none."""
    prefix = history.info.prefix if history.info else "perf"
    found = history.series.get(full_key(key, prefix))
    return found if found is not None and len(found) else None


def _median(history: RunHistory, key: str) -> tuple[float, int] | None:
    if history.summary is not None:
        metrics = history.summary.metrics
        prefix = history.info.prefix if history.info else "perf"
        stat = metrics.get(full_key(key, prefix), metrics.get(key))
        if stat is not None and stat.n > 0 and math.isfinite(stat.p50):
            return stat.p50, stat.n
        if metrics:
            return None
    found = series(history, key)
    if found is None:
        return None
    import numpy as np  # noqa: PLC0415 - heavy, and only a reader's user pays for it

    finite = found.value[np.isfinite(found.value)]
    return (float(np.median(finite)), int(finite.size)) if finite.size else None


def _samples_per_step(history: RunHistory, steps: int | None, samples: int | None) -> float | None:
    if samples is not None and steps:
        return samples / steps
    found = series(history, "perf_step/samples")
    if found is not None:
        import numpy as np  # noqa: PLC0415 - as above

        return float(np.nanmedian(found.value))
    size = history.info.loader.get("batch_size") if history.info else None
    return float(size) if isinstance(size, int) and not isinstance(size, bool) else None


def _last(history: RunHistory, key: str) -> float | None:
    found = series(history, key)
    if found is None or not math.isfinite(found.value[-1]):
        return None
    return float(found.value[-1])


def _last_step(history: RunHistory) -> int | None:
    ours = (series(history, key) for key in CATALOGUE)
    return max((int(found.step[-1]) for found in ours if found is not None), default=None)
