"""Records to JSON and back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trackperf.codec import from_json, plain, to_json
from trackperf.record import Alert, RunInfo, RunSummary, Stat

ALERT = Alert(
    rule="loader_latency", state="raised", level="warning", step=7, wall_time=1.7e9,
    value=42.5, threshold=10.0, cause='größer\n"quoted"', advice="",
)  # fmt: skip
INFO = RunInfo(
    run_id="f" * 32, name="run", dir="runs", started_at=1.7e9, resume_step=3, world_size=2,
    config={"lr": 0.1}, tags={"team": "vision"}, environment={"gpu": False}, loader={"batch_size": 8},
    absent={"perf/gpu_util_pct": "no driver"}, names={"val/acc": "val/Acc"},
)  # fmt: skip
SUMMARY = RunSummary(
    steps=7, samples=None, metrics={"perf/step_ms": Stat(mean=1.0, p50=1.5, p95=2.0, n=3)},
    phases={"train": 2.5, "warmup": 0.5}, alerts=(ALERT,), to_goal_s=1.0, dropped={"points/x": 2},
)  # fmt: skip


@pytest.mark.parametrize("record", [ALERT, INFO, SUMMARY])
def test_a_record_comes_back_equal(record: Any) -> None:
    """What is written and read again is the same record."""
    text = to_json(record)
    assert "\n" not in text
    assert from_json(type(record), text) == record
    assert from_json(type(record), text.encode()) == record


def test_no_word_that_json_does_not_have() -> None:
    """NaN and infinity in a user's settings become null, at any depth."""
    config = {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": 1.5}
    text = to_json(RunInfo(run_id="0", name="r", dir="d", started_at=0.0, config=config))
    loaded = json.loads(text, parse_constant=lambda word: pytest.fail(f"wrote {word}"))
    assert loaded["config"] == {"a": None, "b": [None, {"c": None}], "d": 1.5}


def test_plain_takes_anything() -> None:
    """Settings may hold objects, objects that cannot be shown, and themselves."""

    class Silent:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    ring: dict[str, Any] = {"key": 1}
    ring["self"] = ring
    assert plain({1: {"x"}, "t": (1, None, True), "o": Silent()}) == {
        "1": ["x"],
        "t": [1, None, True],
        "o": "<Silent>",
    }
    assert json.loads(json.dumps(plain(ring)))["self"]["self"]["key"] == 1


def test_fields_of_other_versions() -> None:
    """Fields that this version does not know are left out, and those it misses have their default."""
    loaded = json.loads(to_json(SUMMARY))
    loaded["new_field"] = 1
    loaded["metrics"]["perf/step_ms"]["p99"] = 3.0
    loaded["alerts"][0]["owner"] = "x"
    del loaded["to_goal_s"]
    summary = from_json(RunSummary, json.dumps(loaded))
    assert (summary.metrics, summary.alerts, summary.to_goal_s) == (SUMMARY.metrics, SUMMARY.alerts, None)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", "{}", '{"metrics":3}', '{"alerts":[1]}', b"\xff"]
)
def test_what_is_no_record(text: str | bytes) -> None:
    """Text that is not JSON of such a record is a `ValueError`."""
    kinds: tuple[Any, ...] = (Alert, RunInfo, RunSummary)
    for kind in kinds:
        with pytest.raises(ValueError):
            from_json(kind, text)
