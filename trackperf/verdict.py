"""The verdict on a pair of runs, and the sentence that gives its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from trackperf.text import count, duration, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackperf.comparability import Pair, Side
    from trackperf.comparison import ComparisonRow

__all__ = ["Verdict", "decide"]

Verdict: TypeAlias = Literal["better", "worse", "same", "not comparable"]
"""How the second run stands against the first."""

_SPEED: Final = ("perf/samples_per_s", "perf/tokens_per_s", "perf/step_ms")
"""Measures of speed, the first that both runs have decides."""

_ORDER: Final = ("perf_time/to_goal_s", "perf/train_s", *_SPEED)
"""What decides: the goal, then the time for equal work, then speed."""

_TELLING_POINTS: Final = 5.0
"""A difference in the share of waiting from which it is named as an explanation."""

_JUDGED: Final = ("better", "worse", "same")


def decide(pair: Pair, rows: Mapping[str, ComparisonRow]) -> tuple[Verdict, str]:
    """
    Return the verdict and one sentence with its reason, or why there is none.

    Args:
        pair: the two runs.

        rows: their metrics by key.
    """
    nonsense = _nonsense(pair, rows)
    if nonsense:
        return "not comparable", f"{pair.b.label} and {pair.a.label} are not comparable: {nonsense}."
    only = _only_one_reached(pair)
    if only is not None:
        return only
    row = next(rows[key] for key in _ORDER if key in rows and rows[key].judgement in _JUDGED)
    verdict: Verdict = row.judgement if row.judgement in ("better", "worse") else "same"
    reasons = "; ".join([_main(row, rows), *_explained(pair, verdict, row, rows)])
    return verdict, f"{_opening(pair, verdict, row)}: {reasons}.{_reservation(pair)}"


def _nonsense(pair: Pair, rows: Mapping[str, ComparisonRow]) -> str:
    for side in (pair.a, pair.b):
        if not any(key in side.figures.medians for key in _SPEED):
            steps = side.figures.steps
            done = "" if steps is None else f" in its {count(steps)} steps"
            return f"{side.label} has no steady window{done}"
    if any(key in rows and rows[key].judgement in _JUDGED for key in _ORDER):
        return ""
    if pair.same_batch is False:
        return "a step is not the same number of samples, and only the time per step was measured in both"
    return "they share no measure of speed"


def _only_one_reached(pair: Pair) -> tuple[Verdict, str] | None:
    """Return the verdict where both had the same goal, and only one reached it though both had the time."""
    if pair.a.goal is None or pair.a.goal != pair.b.goal:
        return None
    outcomes: tuple[tuple[Side, Side, Verdict], ...] = ((pair.a, pair.b, "worse"), (pair.b, pair.a, "better"))
    for winner, loser, verdict in outcomes:
        took, tried = winner.figures.to_goal_s, loser.figures.train_s
        if took is None or loser.figures.to_goal_s is not None or tried is None or tried < took:
            continue
        return verdict, (
            f"{pair.b.label} is {verdict} than {pair.a.label}: {winner.label} reached the goal {pair.a.goal} "
            f"after {duration(took)}, {loser.label} did not in {duration(tried)}.{_reservation(pair)}"
        )
    return None


def _opening(pair: Pair, verdict: Verdict, row: ComparisonRow) -> str:
    if verdict == "same":
        return f"{pair.b.label} and {pair.a.label} are the same within 3 %"
    much = "a little " if row.band == "moderate" else ""
    return f"{pair.b.label} is {much}{verdict} than {pair.a.label}"


def _main(row: ComparisonRow, rows: Mapping[str, ComparisonRow]) -> str:
    """Return what decided, with the throughput before it where that says the opposite."""
    if row.key in _SPEED:
        return _phrase(row)
    speed = next((rows[key] for key in _SPEED if rows[key].judgement in ("better", "worse")), None)
    if speed is None or speed.judgement == row.judgement:
        return _phrase(row)
    change = _rose_fell(speed)
    return f"{'time per step' if speed.key == 'perf/step_ms' else 'throughput'} {change} but {_phrase(row)}"


def _phrase(row: ComparisonRow) -> str:
    a, b = row.a or 0.0, row.b or 0.0
    if row.key in ("perf_time/to_goal_s", "perf/train_s"):
        what = "reaching the goal took" if row.key == "perf_time/to_goal_s" else "the same work took"
        longer = (
            "as long" if row.band == "none" else f"{percent(_size(row))} {'longer' if b > a else 'less time'}"
        )
        return f"{what} {longer} ({duration(b)} against {duration(a)})"
    if row.key == "perf/step_ms":
        return f"time per step {_rose_fell(row)} ({duration(b / 1e3)} against {duration(a / 1e3)})"
    thing = "samples" if row.key == "perf/samples_per_s" else "tokens"
    return f"throughput {_rose_fell(row)} ({number(b)} against {number(a)} {thing}/s)"


def _rose_fell(row: ComparisonRow) -> str:
    if row.band == "none":
        return "stayed"
    return f"{'rose' if (row.b or 0.0) > (row.a or 0.0) else 'fell'} {percent(_size(row))}"


def _size(row: ComparisonRow) -> float:
    return abs(row.change_pct or 0.0)


def _explained(
    pair: Pair, verdict: Verdict, row: ComparisonRow, rows: Mapping[str, ComparisonRow]
) -> Iterator[str]:
    if verdict == "same":
        return
    if row.key == "perf_time/to_goal_s":
        yield from _work_to_goal(pair)
    if row.key == "perf/train_s":
        yield from _warm_up(pair)
    data = rows["perf/data_pct"]
    if data.a is None or data.b is None or data.judgement != verdict:
        return
    if abs(data.b - data.a) >= _TELLING_POINTS:
        yield f"it waits for data {percent(data.b)} of the step against {percent(data.a)}{_accounted(pair)}"


def _accounted(pair: Pair) -> str:
    """Return how much of the difference in step time the waiting is, where it is most of it and not more."""
    keys = ("perf/step_ms", "perf/data_pct")
    if pair.same_batch is False or not all(
        key in s.figures.medians for s in (pair.a, pair.b) for key in keys
    ):
        return ""
    (step_a, step_b), (pct_a, pct_b) = ([s.figures.medians[key] for s in (pair.a, pair.b)] for key in keys)
    gained, waited = step_b - step_a, (step_b * pct_b - step_a * pct_a) / 100
    if not 0.5 <= (waited / gained if gained else 0.0) <= 1.0:
        return ""
    return f", {duration(abs(waited) / 1e3)} of the {duration(abs(gained) / 1e3)} a step between them"


def _work_to_goal(pair: Pair) -> Iterator[str]:
    sides = (pair.a, pair.b)
    steps = [side.figures.to_goal_steps for side in sides]
    sizes = [side.figures.samples_per_step for side in sides]
    if steps[0] is None or steps[1] is None or steps[0] == steps[1]:
        return
    if sizes[0] is None or sizes[1] is None:
        yield f"{count(steps[1])} steps against {count(steps[0])}"
    else:
        total = count(steps[1] * sizes[1])
        yield (
            f"{count(steps[1])} steps of {number(sizes[1])} samples = {total} samples "
            f"against {count(steps[0] * sizes[0])}"
        )


def _warm_up(pair: Pair) -> Iterator[str]:
    a, b = pair.a.figures, pair.b.figures
    if a.warmup_s is None or b.warmup_s is None or a.train_s is None or b.train_s is None:
        return
    change = b.train_s - a.train_s
    if change and (b.warmup_s - a.warmup_s) / change >= 0.5:
        yield f"its warm-up took {duration(b.warmup_s)} against {duration(a.warmup_s)}"


def _reservation(pair: Pair) -> str:
    flawed = [f"{side.label} is {' and '.join(side.flaws)}" for side in (pair.a, pair.b) if side.flaws]
    return f" Read it with care: {', '.join(flawed)}." if flawed else ""
