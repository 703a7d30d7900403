"""Bad input to `init` is one clear message: what was got, what is allowed, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import trackperf
from trackperf.config import settings_from
from trackperf.testing import MemorySink

if TYPE_CHECKING:
    from pathlib import Path


class TestRefused:
    """Everything that can be known to be wrong is refused before the training starts."""

    @pytest.mark.parametrize(
        ("option", "value", "said"),
        [
            ("sink", "tensorbord", "'tensorboard'"),
            ("sink", "", "a sink's name"),
            ("sink", 3, "a Sink"),
            ("sink", ["jsonl", MemorySink], "a Sink"),
            ("interval_s", -1, "above 0"),
            ("interval_s", 0, "above 0"),
            ("interval_s", float("nan"), "above 0"),
            ("interval_s", "soon", "above 0"),
            ("interval_s", True, "above 0"),
            ("warmup_steps", -1, "0 or more"),
            ("warmup_steps", 2.5, "0 or more"),
            ("total_steps", 0, "1 or more"),
            ("goal", "val/accuracy", "'val/accuracy >= 0.97'"),
            ("goal", "val/accuracy >= high", "'val/accuracy >= 0.97'"),
            ("goal", 3, "'val/accuracy >= 0.97'"),
            ("prefix", "Perf/", "lower-case"),
            ("name", "../up", "folder"),
            ("name", "12:30", "folder"),
            ("name", "", "folder"),
            ("dir", 3, "a path"),
            ("config", [1], "a mapping"),
            ("tags", "resnet", "a mapping"),
            ("progress", "maybe", "True or False"),
            ("enabled", 2, "True or False"),
            ("on_alert", "me", "a function"),
            ("alerts", {"loader_latncy": False}, "'loader_latency'"),
            ("alerts", {"loader_latency": {"threshhold": 3}}, "'threshold'"),
            ("alerts", "none", "alerts"),
            ("devices", "gpu zero", "UUIDs"),
            ("devices", 1.5, "UUIDs"),
        ],
    )
    def test_message(self, tmp_path: Path, option: str, value: Any, said: str) -> None:
        """The message holds what was got and what is allowed, and nothing was made on disk."""
        options = {"sink": "jsonl", "dir": tmp_path / "runs", option: value}
        with pytest.raises(trackperf.TrackperfError) as caught:
            trackperf.init(**options)
        message = str(caught.value)
        assert said in message
        shown = value[1] if isinstance(value, list) and len(value) == 2 else value
        if not isinstance(value, dict):
            assert repr(shown) in message or str(shown) in message
        assert "\n" not in message
        assert not (tmp_path / "runs").exists()

    def test_unknown_option(self) -> None:
        """A misspelt option is refused with the nearest name."""
        with pytest.raises(trackperf.ConfigError, match=r"'snik'.*'sink'"):
            trackperf.init(snik="tensorboard")

    def test_later_options(self) -> None:
        """What a later version brings is refused by name, not ignored."""
        with pytest.raises(trackperf.NotAvailableError, match="baseline"):
            trackperf.init(baseline="runs/x")

    def test_later_functions(self) -> None:
        """The same goes for functions."""
        with pytest.raises(trackperf.NotAvailableError, match="compare"):
            trackperf.diagnose("runs/x")
        with pytest.raises(trackperf.NotAvailableError, match="loader_latency"):
            trackperf.tune_loader([], step_ms=3.0)


class TestEnvironment:
    """An option that is not given is read from the environment."""

    def test_read(self) -> None:
        """Every option that a text can say is."""
        settings = settings_from(
            {},
            {
                "TRACKPERF_SINK": "jsonl, console",
                "TRACKPERF_NAME": "night",
                "TRACKPERF_DIR": "elsewhere",
                "TRACKPERF_INTERVAL_S": "0.5",
                "TRACKPERF_WARMUP_STEPS": "3",
                "TRACKPERF_TOTAL_STEPS": "900",
                "TRACKPERF_PREFIX": "speed",
                "TRACKPERF_GOAL": "loss < 0.1",
                "TRACKPERF_PROGRESS": "yes",
                "TRACKPERF_ENABLED": "0",
            },
        )
        assert settings.sinks == ("jsonl", "console")
        assert (settings.name, str(settings.dir), settings.prefix) == ("night", "elsewhere", "speed")
        assert (settings.interval_s, settings.warmup_steps, settings.total_steps) == (0.5, 3, 900)
        assert str(settings.goal) == "loss < 0.1"
        assert (settings.progress, settings.enabled) == (True, False)

    def test_what_is_given_wins(self) -> None:
        """An argument stands against the environment, also where it says no."""
        environ = {"TRACKPERF_SINK": "jsonl", "TRACKPERF_PROGRESS": "1"}
        settings = settings_from({"sink": "console", "progress": False}, environ)
        assert (settings.sinks, settings.progress) == (("console",), False)

    def test_wrong_in_the_environment(self) -> None:
        """A bad value there is refused in the same way."""
        with pytest.raises(trackperf.ConfigError, match=r"interval_s.*'fast'"):
            settings_from({}, {"TRACKPERF_INTERVAL_S": "fast"})

    def test_defaults(self) -> None:
        """Nothing given and nothing set is TensorBoard in `runs`."""
        settings = settings_from({}, {})
        assert (settings.sinks, str(settings.dir), settings.warmup_steps) == (("tensorboard",), "runs", 10)
