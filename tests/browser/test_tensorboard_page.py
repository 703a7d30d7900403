"""What a person sees in TensorBoard after a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from trackperf_tensorboard import TensorBoardSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chromium import Browser

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def url(serve: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a TensorBoard that shows a run with a starving loader."""
    from harness import Maker

    folder = tmp_path_factory.mktemp("seen")
    run = Maker(folder)(sinks=[TensorBoardSink()], name="x", config={"lr": 0.1}, total_steps=100)
    for _ in run.perf.steps(run.loader([8] * 100, 0.2), samples=8):
        run.clock.advance(0.1)
    run.perf.finish()
    assert [alert.rule for alert in run.sink.alerts] == ["loader_latency"]
    return serve(folder / "runs")


def test_the_section_of_the_five_numbers(browser: Browser, url: str) -> None:
    """The Time Series page has the section `perf` with the headline charts that a CPU run has."""
    browser.page.goto(f"{url}/#timeseries&tagFilter=%5Eperf%2F")
    for name in ("samples_per_s", "step_ms", "train_s", "data_pct", "data_wait_ms"):
        browser.page.locator("card-view", has_text=name).first.wait_for()
    groups = browser.page.locator("metrics-card-group-toolbar .group-title, .group-name").all_inner_texts()
    assert any(text.strip() == "perf" for text in groups)


def test_the_dashboard_of_five_charts(browser: Browser, url: str) -> None:
    """The Custom Scalars page has one dashboard with a chart for each of the five questions."""
    browser.page.goto(f"{url}/#custom_scalars")
    browser.page.reload()
    for title in (
        "Throughput (1/s)",
        "Training time (s)",
        "GPU utilisation (%)",
        "Memory-bandwidth utilisation (%)",
        "Data-loading latency (%)",
    ):
        browser.page.get_by_text(title, exact=True).first.wait_for()
    assert browser.page.get_by_text("Training performance").count() >= 1
    assert browser.page.locator("tf-custom-scalar-multi-line-chart-card").count() == 5


def test_the_alert_in_words(browser: Browser, url: str) -> None:
    """The Text page shows the alert: its rule, its evidence, and what to do."""
    browser.page.goto(f"{url}/#text")
    browser.page.reload()
    for words in ("loader_latency", "keeps the training waiting for 67 %", "num_workers"):
        browser.page.get_by_text(words).first.wait_for()


def test_the_settings(browser: Browser, url: str) -> None:
    """The HParams page has the user's setting as a column."""
    browser.page.goto(f"{url}/#hparams")
    browser.page.reload()
    browser.page.get_by_text("lr", exact=True).first.wait_for()


def test_nothing_leaves_the_machine(browser: Browser, url: str) -> None:
    """Looking at the pages asked nobody but the server on this machine."""
    assert url in browser.requests[0]
    assert browser.strangers() == []
