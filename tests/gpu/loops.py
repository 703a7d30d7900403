"""Loops of a training that are measured or watched: on any device of torch."""

from __future__ import annotations

import itertools
import re
import statistics
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackperf import Collector

__all__ = ["WATCHED", "compiled_steps", "nodes_of", "ordinary_steps", "step_cost_us"]

WATCHED: Final = (
    ("torch.cuda", "synchronize"),
    ("torch.cuda.Event", "synchronize"),
    ("torch.cuda.Event", "wait"),
    ("torch.cuda.Stream", "synchronize"),
    ("torch.cuda.Stream", "wait_event"),
)
"""What waits for a device, or makes it wait."""


def step_cost_us(perf: Collector, *, steps: int = 2_000, repeats: int = 7) -> float:
    """
    Return what a step of a loop over batches costs the training thread in trackperf, in microseconds.

    On the wall clock, the bare loop taken off: the median of several turns, each with the two side by side.
    """
    batches = itertools.repeat(8)
    watched = iter(perf.steps(batches, samples=8))
    next(watched)
    costs = []
    for _ in range(repeats):
        bare = _turn(lambda: next(batches), steps)
        costs.append(_turn(lambda: next(watched), steps) - bare)
    return statistics.median(costs) / 1e3


def _turn(step: Callable[[], object], steps: int) -> float:
    begin_ns = perf_counter_ns()
    for _ in range(steps):
        step()
    return (perf_counter_ns() - begin_ns) / steps


def ordinary_steps(perf: Collector, device: str, *, steps: int = 200) -> None:
    """Train a little, with everything of trackperf's that records events."""
    import torch

    weights = torch.ones(64, 64, device=device)
    pinned = torch.ones(64, 64, pin_memory=device != "cpu")
    for _ in perf.steps(itertools.repeat(pinned, steps), samples=64):
        with perf.transfer():
            batch = pinned.to(device, non_blocking=True)
        with perf.phase("log"):
            weights = torch.tanh(weights @ batch)
        with perf.data():
            pass


def compiled_steps(perf: Collector, device: str, *, steps: int = 20) -> tuple[int, int]:
    """Train with a step compiled as one whole graph; return how often it was compiled, and the steps."""
    import torch

    compiled = 0

    def backend(graph: Any, _inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def step(batch: torch.Tensor) -> torch.Tensor:
        return (batch @ batch.T).relu().sum()

    batch, taken = torch.ones(16, 16, device=device), 0
    for one in perf.steps(itertools.repeat(batch, steps)):
        with perf.phase("forward"):
            step(one)
        taken += 1
    return compiled, taken


def nodes_of(dot: str) -> int:
    """Return the number of nodes of a graph that CUDA has printed."""
    return len(set(re.findall(r"graph_\d+_node_\d+", dot)))
