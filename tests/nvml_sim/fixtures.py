"""Fixtures for tests with `pytest_plugins = ["nvml_sim.fixtures"]`; they skip where nothing can be built."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import TYPE_CHECKING, Protocol

import pytest

from nvml_sim.build import cannot_build
from nvml_sim.simulation import CallLog, Simulation, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nvml_sim.scenario import Scenario

__all__ = ["Simulate", "driver_for", "driver_log", "simulate"]


class Simulate(Protocol):
    """Puts a simulated machine in place until the test ends."""

    def __call__(self, scenario: Scenario, *, virtual: bool = True) -> Simulation:
        """Return the simulation, begun."""


def _skip_where_impossible() -> None:
    reason = cannot_build()
    if reason is None and importlib.util.find_spec("pynvml") is None:
        reason = "nvidia-ml-py is not installed"
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def simulate() -> Iterator[Simulate]:
    """Return what puts a simulated machine in place for the rest of the test."""
    _skip_where_impossible()
    with contextlib.ExitStack() as stack:
        yield lambda scenario, *, virtual=True: stack.enter_context(Simulation(scenario, virtual=virtual))


@pytest.fixture
def driver_for(tmp_path: Path) -> Callable[[Scenario], dict[str, str]]:
    """Return what gives the environment of a process on a simulated machine."""
    _skip_where_impossible()
    return lambda scenario: environment(scenario, tmp_path / "driver")


@pytest.fixture
def driver_log(tmp_path: Path) -> CallLog:
    """Return what the processes of `driver_for` have done."""
    return CallLog(tmp_path / "driver" / "calls")
