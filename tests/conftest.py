"""What most tests share: runs on a fake clock, and the process put back as it was."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest
from harness import Maker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bench(tmp_path: Path) -> Maker:
    """Return a maker of runs on a fake clock."""
    return Maker(tmp_path)


@pytest.fixture(autouse=True)
def _same_process() -> Iterator[None]:
    before, level = dict(os.environ), logging.getLogger("trackperf").level
    yield
    os.environ.clear()
    os.environ.update(before)
    logging.getLogger("trackperf").setLevel(level)
