"""The times of a step on the device's own clock: the same table on the fake device and on a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from gpu.rigs import CudaRig, FakeRig, Rig
from gpu.scenarios import SCENARIOS, Scenario

if TYPE_CHECKING:
    from pathlib import Path

    from gpu.figures import Figures
    from harness import Maker


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def rig(request: pytest.FixtureRequest, bench: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rig:
    """Return a device to run on."""
    return FakeRig(bench, monkeypatch) if request.param == "fake" else CudaRig(tmp_path)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(rig: Rig, scenario: Scenario, figures: Figures) -> None:
    """What the device waited for, and what it did, is what the loop made it do."""
    scenario.run(rig)
    summary = rig.end()
    metrics = summary.metrics
    found = metrics["perf/data_pct"].mean
    figures.add(f"data_pct, {scenario.name}", found, "%", f"{scenario.data_pct:.1f}")
    assert found == pytest.approx(scenario.data_pct, abs=rig.points)
    for key, seconds in (
        ("perf_step/device_ms", scenario.device_s),
        ("perf/data_wait_ms", scenario.wait_s),
        ("perf_data/h2d_ms", scenario.copy_s),
    ):
        if seconds is not None:
            right: Any = pytest.approx(1000 * seconds * rig.scale, rel=rig.points / 50)
            assert metrics[key].mean == right, key
    assert summary.dropped.get("device_times", 0) <= scenario.lost
    assert summary.steps == 60
