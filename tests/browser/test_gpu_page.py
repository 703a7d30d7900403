"""What a person sees in TensorBoard after a run on a GPU with all its counters."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from nvml_sim import environment, presets
from nvml_sim.build import cannot_build

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chromium import Browser

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]

TRAIN = """
import time, trackperf
perf = trackperf.init(name="x", warmup_steps=0, devices=[0], interval_s=1.0)
until = time.perf_counter() + 3.3
while time.perf_counter() < until:
    with perf.step(samples=8):
        with perf.data():
            time.sleep(0.002)
        time.sleep(0.01)
perf.finish()
"""


@pytest.fixture(scope="module")
def url(serve: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a TensorBoard that shows a run on a simulated H200."""
    reason = cannot_build()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("h200")
    driver = environment(presets.h200(), folder / "driver")
    subprocess.run(
        [sys.executable, "-c", TRAIN], cwd=folder, env={**os.environ, **driver}, check=True, timeout=100
    )
    return serve(folder / "runs")


def test_all_five_numbers(browser: Browser, url: str) -> None:
    """The section `perf` has throughput, training time, both of the GPU, and data loading."""
    # Cards are drawn when they come into view.
    browser.page.set_viewport_size({"width": 1500, "height": 2600})
    browser.page.goto(f"{url}/#timeseries&tagFilter=%5Eperf%2F")
    for name in ("samples_per_s", "train_s", "gpu_util_pct", "mem_bw_pct", "mem_busy_pct", "data_pct"):
        browser.page.locator("card-view", has_text=name).first.wait_for()


def test_the_dashboard_draws_them(browser: Browser, url: str) -> None:
    """Each of the five charts finds its series: one, and two of memory bandwidth."""
    browser.page.goto(f"{url}/#custom_scalars")
    browser.page.reload()
    cards = browser.page.locator("tf-custom-scalar-multi-line-chart-card")
    cards.nth(4).wait_for()
    browser.page.get_by_text("Matches (2)").wait_for()
    browser.page.get_by_text("Matches (1)").nth(3).wait_for()
    assert cards.count() == 5
    assert browser.strangers() == []
