"""What trackperf costs a step on a GPU, and what it must never do there."""

from __future__ import annotations

import functools
import itertools
import logging
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest
from gpu.loops import WATCHED, compiled_steps, nodes_of, ordinary_steps, step_cost_us
from gpu.rigs import FakeRig

import trackperf
from trackperf.testing import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpu.figures import Figures
    from harness import Maker

    from trackperf import Collector

torch: Any = pytest.importorskip("torch")

MOST_US = 15.0
STEPS = 200


@pytest.fixture
def cuda(tmp_path: Path) -> Iterator[Collector]:
    """Return a run of a process that uses CUDA."""
    torch.zeros(1, device="cuda")
    perf = trackperf.init(sink=MemorySink(), dir=tmp_path, warmup_steps=0, alerts=False)
    yield perf
    perf.finish()


def watch(monkeypatch: pytest.MonkeyPatch, called: list[str]) -> None:
    """Note every call of what waits for a device."""
    for owner, name in WATCHED:
        place = attrgetter(owner.removeprefix("torch."))(torch)
        original: Callable[..., Any] = getattr(place, name)

        @functools.wraps(original)
        def noted(*args: Any, _what: str = f"{owner}.{name}", _call: Any = original, **kwargs: Any) -> Any:
            called.append(_what)
            return _call(*args, **kwargs)

        monkeypatch.setattr(place, name, noted)


def test_the_loops_on_a_fake_device(bench: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loop of this file runs through, and on the fake device nothing waits for it."""
    called: list[str] = []
    watch(monkeypatch, called)
    rig = FakeRig(bench, monkeypatch)
    assert step_cost_us(rig.perf, steps=50, repeats=3) > 0
    ordinary_steps(rig.perf, "cpu", steps=20)
    assert compiled_steps(rig.perf, "cpu") == (1, 20)
    summary = rig.end()
    assert summary.steps >= 150 + 20 + 20
    assert rig.device.synchronisations == 0
    assert rig.device.records > 2 * 40
    assert called == []


def test_what_waits_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch sees a call, by any of its names."""
    called: list[str] = []
    watch(monkeypatch, called)
    with pytest.raises((AssertionError, RuntimeError)):
        torch.cuda.synchronize(device="cuda:99")
    assert called == ["torch.cuda.synchronize"]
    assert len(WATCHED) == len(set(WATCHED)) == 5


def test_nodes_are_counted() -> None:
    """Each node of a printed graph counts once, however often an edge names it."""
    nodes = '"graph_3_node_0"[label="a"];\n"graph_3_node_1"[label="b"];\n'
    dot = f'digraph {{\n{nodes}"graph_3_node_0" -> "graph_3_node_1";\n}}'
    assert nodes_of(dot) == 2
    assert nodes_of("digraph {}") == 0


@pytest.mark.gpu
def test_cost_of_a_step(cuda: Collector, figures: Figures) -> None:
    """A step with its two events costs at most 15 us of the training thread."""
    cost_us = step_cost_us(cuda)
    figures.add("cost of a step with events", cost_us, "us", f"at most {MOST_US:g}")
    cuda.flush()
    told = cuda.summary().metrics.get("perf_self/us_per_step")
    figures.add("perf_self/us_per_step, the same loop", told.mean if told else "not measured", "us")
    assert cost_us <= MOST_US


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls its own check a prototype
def test_never_a_synchronisation(
    cuda: Collector, monkeypatch: pytest.MonkeyPatch, figures: Figures, caplog: pytest.LogCaptureFixture
) -> None:
    """In a loop with copies, phases and fetches nothing waits for the device, nor does torch."""
    ordinary_steps(cuda, "cuda", steps=20)
    torch.cuda.synchronize()
    called: list[str] = []
    watch(monkeypatch, called)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ordinary_steps(cuda, "cuda", steps=STEPS)
        cuda.finish()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    figures.add("synchronisations in 200 steps", float(len(called)), "", "0")
    assert called == []
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    metrics = cuda.summary().metrics
    assert metrics["perf_step/device_ms"].mean > 0
    assert "perf_data/h2d_ms" in metrics


def captured_nodes(path: Path, work: Callable[[], Any]) -> int:
    """Return how many nodes the graph of a work has."""
    graph = torch.cuda.CUDAGraph()
    graph.enable_debug_mode()
    with torch.cuda.graph(graph):
        work()
    graph.debug_dump(str(path))
    graph.replay()
    return nodes_of(path.read_text())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that it prints a graph
def test_a_captured_graph_has_its_own_nodes_only(cuda: Collector, tmp_path: Path, figures: Figures) -> None:
    """A graph captured in a step has the nodes that it has without trackperf, and its replays are timed."""
    weights = torch.ones(256, 256, device="cuda")
    held: list[Any] = []

    def work() -> None:
        held.append(torch.tanh(weights @ weights).sum())

    work()
    # The first capture of a process makes room for itself.
    captured_nodes(tmp_path / "first.dot", work)
    alone, inside = captured_nodes(tmp_path / "alone.dot", work), 0
    for place, _ in enumerate(cuda.steps(itertools.repeat(8, 100), samples=8)):
        if place == 50:

            def marked() -> None:
                with cuda.phase("forward"), cuda.transfer(), cuda.data():
                    work()

            inside = captured_nodes(tmp_path / "inside.dot", marked)
        else:
            weights.tanh()
    figures.add("nodes of a captured graph", float(inside), "", f"{alone}")
    assert inside == alone > 0
    summary = cuda.summary()
    assert summary.steps == 100
    assert summary.dropped.get("device_times", 0) <= 2


@pytest.mark.gpu
def test_a_compiled_step(cuda: Collector) -> None:
    """A step that is compiled as one whole graph is compiled once, and times of the device are there."""
    assert compiled_steps(cuda, "cuda") == (1, 20)
    cuda.finish()
    assert cuda.summary().metrics["perf_step/device_ms"].mean > 0
