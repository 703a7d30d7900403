"""
What `trackperf demo` shows: one training twice, first with a loader that keeps it waiting.

Imported only by the command. Loader workers import this package too, so it imports nothing by itself.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from trackperf.errors import MissingDependencyError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["run_demo"]

_NEEDS: Final = {"torch": "torch", "sklearn": "scikit-learn", "PIL": "pillow", "tensorboard": "tensorboard"}
"""Import name to the name that pip knows."""


def run_demo(folder: Path, *, steps: int | None = None, quick: bool = False) -> None:
    """
    Train twice, compare, and print what came of it.

    Args:
        folder: where runs are; the demo makes a folder of its own in it.

        steps: steps of each run; measured for this machine when None.

        quick: a shorter first run, just long enough for the alert.

    Raises:
        MissingDependencyError: a package of the extra `demo` is not installed.
    """
    for name, package in _NEEDS.items():
        if importlib.util.find_spec(name) is None:
            raise MissingDependencyError(user="trackperf demo", package=package, extra="demo")
    from trackperf.demo.show import show  # noqa: PLC0415 - imports torch

    show(folder, steps=steps, quick=quick)
