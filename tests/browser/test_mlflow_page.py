"""What a person sees in MLflow after two runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from mlflow_server import MARKS, mlflow_uri  # noqa: F401 - a fixture
from trackperf_mlflow import MlflowSink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chromium import Browser

pytestmark = [*MARKS, pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def runs(mlflow_uri: str, tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, str]]:  # noqa: F811
    """Return the addresses of a run with a starving loader and of one without."""
    from harness import Maker

    found: list[Mapping[str, str]] = []
    for name, wait_s in (("starving", 0.2), ("fed", 0.0)):
        sink = MlflowSink(tracking_uri=mlflow_uri, experiment="seen")
        run = Maker(tmp_path_factory.mktemp(name))(sinks=[sink], name=name, total_steps=100)
        for _ in run.perf.steps(run.loader([8] * 100, wait_s), samples=8):
            run.clock.advance(0.1)
        run.perf.finish()
        found.append(sink.address())
    return found


def test_the_section_of_the_five_numbers(
    browser: Browser,
    mlflow_uri: str,  # noqa: F811
    runs: list[Mapping[str, str]],
) -> None:
    """The run's page has the section `perf` with the headline charts that a CPU run has, each drawn."""
    place = f"experiments/{runs[0]['experiment_id']}/runs/{runs[0]['run_id']}"
    browser.page.set_viewport_size({"width": 1500, "height": 1400})
    browser.page.goto(f"{mlflow_uri}/#/{place}/model-metrics")
    browser.page.locator("div", has_text=re.compile(r"^perf\(5\)")).first.wait_for()
    for name in ("samples_per_s", "step_ms", "train_s", "data_pct", "data_wait_ms"):
        browser.page.get_by_text(f"starving (perf/{name})").first.wait_for()


def test_two_runs_in_one_chart(
    browser: Browser,
    mlflow_uri: str,  # noqa: F811
    runs: list[Mapping[str, str]],
) -> None:
    """The runs page lays both runs over each other."""
    place = f"experiments/{runs[0]['experiment_id']}/runs?compareRunsMode=CHART"
    browser.page.goto(f"{mlflow_uri}/#/{place}")
    # MLflow cuts the legend's texts where there is no room.
    for name in ("starving", "fed"):
        browser.page.get_by_text(re.compile(rf"^{name} \(perf/")).nth(4).wait_for()


def test_the_alert_in_words(
    browser: Browser,
    mlflow_uri: str,  # noqa: F811
    runs: list[Mapping[str, str]],
) -> None:
    """The run's description says what is wrong, on what evidence, and what to do; and how it ended."""
    place = f"experiments/{runs[0]['experiment_id']}/runs/{runs[0]['run_id']}"
    browser.page.goto(f"{mlflow_uri}/#/{place}")
    for words in ("Finished", "1 alert", "waiting for 67 % of each step", "num_workers"):
        browser.page.get_by_text(words).first.wait_for()
    assert browser.page.get_by_text("[//]").count() == 0
    assert browser.page.get_by_text("mlflow.trackperf").count() == 0
    assert browser.strangers() == []
