"""What tests on a real GPU share: one reason to skip them, and the file that their figures go to."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

import pytest
from gpu.figures import Figures, machine

if TYPE_CHECKING:
    from collections.abc import Iterator


@functools.cache
def no_gpu() -> str | None:
    """Return why there is no real GPU to test on, or None."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "needs a real NVIDIA GPU: this machine has no driver for one"
    try:
        import torch
    except ImportError:
        return "needs a real NVIDIA GPU, and torch to use it: torch is not installed"
    return None if torch.cuda.is_available() else "needs a real NVIDIA GPU: torch finds none that it can use"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    reason = no_gpu() if item.get_closest_marker("gpu") else None
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def _real_figures() -> Iterator[Figures]:
    figures = Figures()
    yield figures
    import torch

    figures.write(machine(torch))


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Return what figures of a real GPU go to; those of a simulated one are nobody's."""
    if request.node.get_closest_marker("gpu") is None:
        return Figures()
    found: Figures = request.getfixturevalue("_real_figures")
    return found
