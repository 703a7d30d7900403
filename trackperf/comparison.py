"""
Two runs, one verdict: training time first, then throughput, and what explains the difference.

Whether they may be compared at all comes before that: what differs between them is listed, what is wrong
with either is told, and where a verdict would be nonsense there is none.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from trackperf.codec import plain
from trackperf.comparability import Pair, differences, notes, pair_of
from trackperf.history import RunHistory
from trackperf.metrics import CATALOGUE, HEADLINE, Metric
from trackperf.verdict import Verdict, decide

if TYPE_CHECKING:
    from trackperf.figures import Figures

__all__ = ["Band", "Comparison", "ComparisonRow", "Judgement", "Verdict", "compare"]

Judgement: TypeAlias = Literal["better", "worse", "same", "neutral", "not comparable", "absent"]
"""
How the second run stands against the first in one metric: `neutral` where no direction is an improvement,
`absent` where one of them did not measure it.
"""

Band: TypeAlias = Literal["none", "moderate", "material"]
"""How large a change is."""

_MODERATE_PCT: Final = 3.0
_MATERIAL_PCT: Final = 8.0

_LEAST_POINTS: Final = 1.0
"""Shares in per cent that differ by less than this many points are the same, however small they are."""

_PER_STEP: Final = ("perf/step_ms", "perf/data_wait_ms")
_GOAL: Final = ("perf_time/to_goal_s", "perf_time/to_goal_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One metric of both runs."""

    key: str
    title: str
    unit: str
    a: float | None
    """Median over the steady windows, or the total for a training time; None where it was not measured."""

    b: float | None
    change_pct: float | None
    """From a to b, in per cent of a; None where one is absent, or a is zero."""

    judgement: Judgement
    band: Band
    """How large the change is: moderate from 3 %, material from 8 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What became of a comparison of run b against run a."""

    a: str
    """Name of the run that is compared with."""

    b: str
    """Name of the run that is judged."""

    verdict: Verdict
    """How b stands against a."""

    sentence: str
    """The verdict and its reason."""

    rows: tuple[ComparisonRow, ...]
    """The goal where there is one, training time, then the other headline metrics."""

    differences: tuple[str, ...]
    """What differs in place, size and settings, a phrase each."""

    notes: tuple[str, ...]
    """What is wrong with either run or must be known about it, a sentence each."""

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON can carry it."""
        converted: dict[str, Any] = plain(asdict(self))
        return converted


def compare(a: RunHistory | str | os.PathLike[str], b: RunHistory | str | os.PathLike[str]) -> Comparison:
    """
    Compare run `b` with run `a`.

    Args:
        a: the run to compare with, or its address.

        b: the run to judge, or its address.

    Raises:
        ReadError: a run cannot be found or read.
    """
    pair = pair_of(_history(a), _history(b))
    rows = _rows(pair)
    verdict, sentence = decide(pair, {row.key: row for row in rows})
    return Comparison(
        a=pair.a.history.name,
        b=pair.b.history.name,
        verdict=verdict,
        sentence=sentence,
        rows=rows,
        differences=differences(pair),
        notes=notes(pair),
    )


def _history(run: RunHistory | str | os.PathLike[str]) -> RunHistory:
    if isinstance(run, RunHistory):
        return run
    from trackperf.registry import read_run  # noqa: PLC0415 - looks for plug-ins

    return read_run(os.fspath(run))


def _rows(pair: Pair) -> tuple[ComparisonRow, ...]:
    a, b = _values(pair.a.figures), _values(pair.b.figures)
    goal = [CATALOGUE[key] for key in _GOAL if key in a or key in b]
    ordered = sorted(HEADLINE, key=lambda metric: metric.key != "perf/train_s")
    return tuple(_row(pair, metric, a.get(metric.key), b.get(metric.key)) for metric in (*goal, *ordered))


def _values(figures: Figures) -> dict[str, float]:
    totals = {
        "perf/train_s": figures.train_s,
        "perf_time/to_goal_s": figures.to_goal_s,
        "perf_time/to_goal_steps": figures.to_goal_steps,
    }
    return {**figures.medians, **{key: value for key, value in totals.items() if value is not None}}


def _row(pair: Pair, metric: Metric, a: float | None, b: float | None) -> ComparisonRow:
    change = (b - a) / abs(a) * 100 if a is not None and b is not None and a != 0 else None
    band: Band = "none"
    judgement: Judgement = "absent"
    if a is not None and b is not None:
        band = "none" if abs(b - a) < _floor(pair, metric) else _band(a, b, change)
        judgement = _judgement(pair, metric, band, rose=b > a)
    return ComparisonRow(
        key=metric.key,
        title=metric.title,
        unit=metric.unit,
        a=a,
        b=b,
        change_pct=change,
        judgement=judgement,
        band=band,
    )


def _floor(pair: Pair, metric: Metric) -> float:
    """Return the difference below which two values are the same, whatever their ratio."""
    if metric.unit == "%":
        return _LEAST_POINTS
    if metric.key == "perf/data_wait_ms":
        return _LEAST_POINTS / 100 * pair.a.figures.medians.get("perf/step_ms", 0.0)
    return 0.0


def _band(a: float, b: float, change: float | None) -> Band:
    if change is None:
        return "none" if a == b else "material"
    # Rounding must not turn a change of exactly 3 % into less.
    size = round(abs(change), 9)
    return "none" if size < _MODERATE_PCT else "moderate" if size < _MATERIAL_PCT else "material"


def _judgement(pair: Pair, metric: Metric, band: Band, *, rose: bool) -> Judgement:
    incomparable = (
        (metric.key == "perf/train_s" and not pair.same_work)
        or (metric.key in _PER_STEP and pair.same_batch is False)
        or (metric.key == "perf/tokens_per_s" and not pair.same_tokens)
        or (metric.key in _GOAL and not pair.same_goal)
    )
    if incomparable:
        return "not comparable"
    if metric.better == "neither":
        return "neutral"
    if band == "none":
        return "same"
    return "better" if rose == (metric.better == "higher") else "worse"
