"""
Rows of a benchmark, measured in turns: every row once a repeat, all in one process.

A machine's speed changes from second to second, so that numbers of different moments do not compare. What
compares is the ratio of two rows within a repeat; what is reported of it is the median over the repeats.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["BARE", "Costs", "Row", "Sizes", "between", "in_turns", "median", "median_ratio"]

BARE: Final = "bare loop"
"""The row that is taken off all others."""

Costs = dict[str, list[float]]
"""Row to its figure in each repeat."""


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A loop to measure."""

    name: str
    """What the loop does in each step."""

    run: Callable[[int], object]
    """Goes through that many steps."""

    steps: int
    """Steps a repeat."""

    settle: Callable[[], object] = _nothing
    """Called after the loop, unmeasured: what it left for later is done before the next row's turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    repeats: int = 12
    """Repeats that count; one more comes first and does not."""

    scale: float = 1.0
    """Factor on the number of steps and points; tests use a small one."""

    def of(self, steps: int, least: int = 10) -> int:
        """Return a number of steps, scaled."""
        return max(least, round(steps * self.scale))


def in_turns(rows: Sequence[Row], repeats: int, clock: Callable[[], int] = time.thread_time_ns) -> Costs:
    """
    Return nanoseconds a step of each row, for each repeat, the bare loop taken off the others.

    Args:
        rows: what to measure, a row named `BARE` among them.

        repeats: how many repeats count.

        clock: what to measure with: by default the CPU time of this thread.
    """
    costs: Costs = {row.name: [] for row in rows}
    for repeat in range(repeats + 1):
        spent = {row.name: _one(row, clock) for row in rows}
        if repeat:
            for name, ns in spent.items():
                costs[name].append(ns if name == BARE else ns - spent[BARE])
    return costs


def between(
    bare: Row, row: Row, repeats: int, clock: Callable[[], int] = time.perf_counter_ns
) -> tuple[list[float], list[float]]:
    """
    Return nanoseconds a step of a bare loop, and what another loop took more than the bare ones around it.

    Steps of half a millisecond vary by a tenth from one second to the next on a shared machine, which is more
    than what is looked for: each turn is held against the turns just before and just after it.

    Args:
        bare: the loop that is taken off.

        row: the loop to measure.

        repeats: how many repeats count; one more comes first and does not.

        clock: what to measure with.
    """
    bares, more = [_one(bare, clock)], []
    for _ in range(repeats + 1):
        spent = _one(row, clock)
        bares.append(_one(bare, clock))
        more.append(spent - (bares[-2] + bares[-1]) / 2)
    return bares, more[1:]


def median(costs: Mapping[str, Sequence[float]], name: str) -> float:
    """Return a row's median over the repeats."""
    return statistics.median(costs[name])


def median_ratio(costs: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """Return the median of the ratios of two rows, each taken within a repeat."""
    pairs = zip(costs[name], costs[base], strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def _one(row: Row, clock: Callable[[], int]) -> float:
    gc.collect()
    begin = clock()
    row.run(row.steps)
    spent = clock() - begin
    row.settle()
    return spent / row.steps
