"""The workspace: built without a server, or refused with a sentence."""

from __future__ import annotations

import importlib.util

import pytest
from trackperf_wandb import workspace

from trackperf.errors import TrackperfError

THERE = importlib.util.find_spec("wandb_workspaces") is not None


@pytest.mark.skipif(THERE, reason="wandb-workspaces is installed")
def test_without_the_package_the_message_says_what_to_install() -> None:
    """A missing package is said with the line that installs it."""
    with pytest.raises(TrackperfError, match="pip install wandb-workspaces"):
        workspace(entity="team", project="digits")


@pytest.mark.skipif(not THERE, reason="wandb-workspaces is not installed")
def test_the_five_charts_are_in_one_section() -> None:
    """The workspace has one section of the five headline charts over our steps."""
    made = workspace(entity="team", project="digits")
    (section,) = made.sections
    assert section.panels[0].y == ["perf/samples_per_s"]
    assert len(section.panels) == 5
