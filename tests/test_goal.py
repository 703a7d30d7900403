"""Goals: what is understood, what is refused, and when one is reached."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trackperf.errors import ConfigError
from trackperf.goal import Goal


@pytest.mark.parametrize(
    ("text", "name", "op", "value"),
    [
        ("val/accuracy >= 0.97", "val/accuracy", ">=", 0.97),
        ("  loss<1e-3 ", "loss", "<", 1e-3),
        ("mean reward > -200", "mean reward", ">", -200.0),
        ("wer<=5", "wer", "<=", 5.0),
    ],
)
def test_parse(text: str, name: str, op: str, value: float) -> None:
    """Name, comparison and number come out of the text, with or without spaces."""
    goal = Goal.parse(text)
    assert (goal.name, goal.op, goal.value) == (name, op, value)
    assert Goal.parse(str(goal)) == goal


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not understood"),
        ("val/accuracy", "not understood"),
        ("val/accuracy == 0.97", "not understood"),
        ("val/accuracy => 0.97", "not understood"),
        (">= 0.97", "not understood"),
        ("0.5 <= a <= 0.9", "not understood"),
        ("val/accuracy >= high", "'high' is not a finite number"),
        ("val/accuracy >= nan", "'nan' is not a finite number"),
        ("val/accuracy >= 97%", "'97%' is not a finite number"),
        ("0.97 <= val/accuracy", "the name comes first"),
        (0.97, "not a text (got 0.97)"),
        (None, "not a text (got None)"),
    ],
)
def test_refused(text: Any, told: str) -> None:
    """What is no goal is refused with what was got, the form and an example."""
    with pytest.raises(ConfigError) as caught:
        Goal.parse(text)
    assert told in str(caught.value)
    assert "'val/accuracy >= 0.97'" in str(caught.value)


def test_reached() -> None:
    """Each comparison holds at, above and below its number as written; NaN reaches nothing."""
    table = {
        ">=": (False, True, True),
        ">": (False, False, True),
        "<=": (True, True, False),
        "<": (True, False, False),
    }
    for op, expected in table.items():
        goal = Goal.parse(f"x {op} 2")
        assert tuple(goal.reached(value) for value in (1.0, 2.0, 3.0)) == expected
        assert goal.reached(math.nan) is False
