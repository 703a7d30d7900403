"""Rules of the user's own: conditions in a line, functions, and what is refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from trackperf.alerts import AlertEngine, build_rules
from trackperf.errors import ConfigError
from trackperf.expressions import JUDGED
from trackperf.metrics import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackperf.record import Alert
    from trackperf.rule import Rule


def own(given: Any) -> Rule:
    """Return a rule of the user's own, called `mine`."""
    return build_rules({"mine": given})[-1]


class Run:
    """An engine with that rule, two seconds a window."""

    def __init__(self, given: Any) -> None:
        self.now_ns = 0
        self.engine = AlertEngine([own(given)], clock=lambda: self.now_ns)

    def windows(self, count: int, values: Mapping[str, float]) -> list[Alert]:
        """Judge windows of these values; return what was said."""
        said = []
        for _ in range(count):
            self.now_ns += 2_000_000_000
            said += self.engine.judge({"perf/step_ms": 100.0, **values}, step=1, steps=20, wall_time=0.0)
        return said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("perf/data_pct > 15 for 5 windows", ("perf/data_pct", "above", 15, 13.5, 5)),
        ("perf/data_pct>15", ("perf/data_pct", "above", 15, 13.5, 3)),
        ("perf/step_ms > 2e3 ms for 1 window", ("perf/step_ms", "above", 2000, 1800, 1)),
        ("perf_gpu/power_w < 300 W", ("perf_gpu/power_w", "below", 300, 330, 3)),
        ("perf_gpu2/mem_used_pct > 80 %", ("perf_gpu2/mem_used_pct", "above", 80, 72, 3)),
        ("perf/gpu_util_pct < 95", ("perf/gpu_util_pct", "below", 95, 97.5, 3)),
    ],
)
def test_conditions(text: str, expected: tuple[str, str, float, float, int]) -> None:
    """A series, a side, a number, and how many windows; the clear level is a tenth away, in reach."""
    rule = own(text)
    assert (rule.key, rule.direction) == expected[:2]
    assert (rule.threshold, rule.clear, rule.windows) == pytest.approx(expected[2:])
    assert (rule.level, rule.own) == ("warning", True)


def test_raises_holds_and_clears() -> None:
    """It is raised after its windows, holds between its levels, and clears with numbers in both texts."""
    run = Run("perf/data_pct > 15 for 5 windows")
    assert run.windows(4, {"perf/data_pct": 20.0}) == []
    (raised,) = run.windows(1, {"perf/data_pct": 20.0})
    assert raised.cause == "waiting for data is 20 % (above 15 %)"
    assert run.engine.flags()["perf_alert/mine"] == 1
    assert run.windows(10, {"perf/data_pct": 14.0}) == []
    (cleared,) = run.windows(3, {"perf/data_pct": 5.0})
    assert cleared.cause == "waiting for data is 5 %, below 14 % again after 26 s"


def test_at_least() -> None:
    """`>=` counts the level itself, `>` does not."""
    assert len(Run("perf/data_pct >= 15").windows(3, {"perf/data_pct": 15.0})) == 1
    assert Run("perf/data_pct > 15").windows(9, {"perf/data_pct": 15.0}) == []


def test_several_at_once() -> None:
    """With `and` all must hold, each is told, and the end of either is the end."""
    run = Run("perf/gpu_util_pct < 50 and perf_gpu1/temp_c > 70 for 2 windows")
    both = {"perf/gpu_util_pct": 40.0, "perf_gpu1/temp_c": 80.0}
    assert run.windows(9, {**both, "perf_gpu1/temp_c": 60.0}) == []
    (raised,) = run.windows(2, both)
    assert (
        raised.cause == "GPU utilisation is 40 % (below 50 %) and temperature of GPU 1 is 80 C (above 70 C)"
    )
    assert run.windows(9, {**both, "perf_gpu1/temp_c": 65.0}) == []
    assert [alert.state for alert in run.windows(3, {**both, "perf_gpu1/temp_c": 60.0})] == ["cleared"]
    assert run.windows(9, {"perf/gpu_util_pct": 40.0}) == []


def test_settings() -> None:
    """A condition may stand among the settings that a shipped rule has."""
    rule = own({"when": "perf/data_pct > 15", "level": "notice", "clear": 5, "windows": 7, "cooldown_s": 9})
    assert (rule.level, rule.clear, rule.windows, rule.cooldown_s) == ("notice", 5, 7, 9)


def test_shipped_rules_stay() -> None:
    """A rule of one's own stands beside the shipped ones, and beside changes of those."""
    names = [rule.name for rule in build_rules({"mine": "perf/data_pct > 5", "loader_latency": False})]
    assert names[-1] == "mine"
    assert names[:-1] == [rule.name for rule in build_rules()][1:]


def test_function() -> None:
    """A function of the values is true or false; a text is the cause."""
    run = Run(lambda values: "ran dry" if values["perf/data_pct"] > 15 else "")
    (raised,) = run.windows(3, {"perf/data_pct": 20.0})
    assert (raised.cause, raised.value) == ("ran dry", 1.0)
    (cleared,) = run.windows(3, {"perf/data_pct": 5.0})
    assert cleared.cause == "mine is over after 6 s"
    (plain,) = Run(lambda values: values["perf/data_pct"] > 15).windows(3, {"perf/data_pct": 20.0})
    assert plain.cause == "mine holds"


def test_function_that_abstains_or_fails(caplog: pytest.LogCaptureFixture) -> None:
    """None passes a window over, so does an exception; of that there is one warning."""
    run = Run(lambda values: values["perf/data_pct"] > 15 if "perf/data_pct" in values else None)
    assert len(run.windows(3, {"perf/data_pct": 20.0})) == 1
    assert run.windows(9, {}) == []
    assert run.engine.flags()["perf_alert/mine"] == 1
    with caplog.at_level(logging.WARNING, logger="trackperf"):
        assert Run(lambda values: values["nothing"]).windows(9, {}) == []
    assert [record.getMessage() for record in caplog.records] == [
        "the condition of alert mine could not be judged"
    ]


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        (
            "mine",
            "perf/data_pc > 15",
            "the series 'perf/data_pc' does not exist. Did you mean 'perf/data_pct'?",
        ),
        ("mine", "perf/data_pct > 5 and perf/gpu_utl_pct < 9", "Did you mean 'perf/gpu_util_pct'?"),
        ("mine", "perf_gpu0/tempc > 5", "Did you mean 'perf_gpu/temp_c'?"),
        ("mine", "perf_time/eval_s > 5", "is not judged window by window"),
        ("mine", "perf_alert/active > 0", "is not judged window by window"),
        ("mine", "perf/data_pct 15", "is not a condition such as"),
        ("mine", "perf/data_pct == 15", "is not a condition such as"),
        ("mine", "perf/data_pct > much", "is not a condition such as"),
        ("mine", "perf/data_pct > nan", "is not a condition such as"),
        ("mine", "perf/data_pct > 15 for ever", "is not a condition such as"),
        ("mine", "perf/data_pct > 15 for 0 windows", "windows must be a whole number from 1 (got 0)"),
        ("mine", "perf/data_pct > 150", "between 0 and 100"),
        ("mine", "", "is not a condition such as"),
        ("mine", {"when": 3}, "or a function of a window's values (got 3, a int)"),
        ("mine", {"when": "perf/data_pct > 5", "treshold": 3}, "has no setting 'treshold'"),
        ("mine", {"threshold": 3}, "there is no rule 'mine'"),
        ("my rule", "perf/data_pct > 5", "Write 'my_rule'."),
        ("active", "perf/data_pct > 5", "not 'active'"),
        ("3", "perf/data_pct > 5", "lower case, digits and underscores"),
        ("loader_latency", "perf/data_pct > 5", "A rule of your own takes another name"),
        ("straggler", "perf/data_pct > 5", "not available in this version"),
        ("baseline_regression", False, "not available in this version"),
    ],
)
def test_refused(name: str, given: Any, told: str) -> None:
    """What cannot be judged is refused at once, with the nearest name or with what to write."""
    with pytest.raises(ConfigError) as caught:
        build_rules({name: given})
    assert told in str(caught.value)


def test_series_that_are_judged_exist() -> None:
    """Every series that a condition may name is in the catalogue, and of a window."""
    assert set(JUDGED) < set(CATALOGUE)
    assert "perf/samples_per_s" in JUDGED
    assert not [key for key in JUDGED if key.startswith(("perf_time/", "perf_alert/"))]
