"""Advice on devices, starts and drops: the right remedy for each case, with its numbers."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from trackperf.judge import Judge
from trackperf.loaders import LoaderFacts
from trackperf.remedies import (
    advise_drop,
    advise_heat,
    advise_kernels,
    advise_memory,
    advise_startup,
    advise_transfer,
)
from trackperf.rules import build_rules
from trackperf.steady import Steady

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackperf.record import Alert
    from trackperf.timing.windows import Window


class TestKernels:
    """Small kernels: more work at a time."""

    def test_room_for_a_larger_batch(self) -> None:
        """With memory to spare a larger batch comes first, with the batch and the memory of now."""
        advice = advise_kernels({"perf_step/samples": 32.0, "perf_gpu/mem_used_pct": 20.0})
        assert (
            "a larger batch (now 32 samples a step), for which there is room: memory is 20 % full" in advice
        )
        assert "torch.compile(model)" in advice
        assert "CUDA graphs" in advice

    def test_no_room(self) -> None:
        """With memory nearly full no larger batch is advised."""
        assert "larger batch" not in advise_kernels({"perf_gpu/mem_used_pct": 92.0})

    def test_large_kernels_with_gaps(self) -> None:
        """Where SM activity is high the gaps between kernels are the host's."""
        assert "where the host waits" in advise_kernels({"perf_gpu/sm_active_pct": 70.0})
        assert "where the host waits" not in advise_kernels({"perf_gpu/sm_active_pct": 20.0})


def test_transfer() -> None:
    """Bandwidth-bound: fuse, lower precision, fewer copies; copies to the device where they show."""
    advice = advise_transfer({"perf/step_ms": 100.0, "perf_data/h2d_ms": 9.0})
    for words in ("fuse", "bfloat16", "copies", "take 9 ms a step"):
        assert words in advice
    assert "a step" not in advise_transfer({"perf/step_ms": 100.0, "perf_data/h2d_ms": 1.0})


@pytest.mark.parametrize(
    ("reserved", "peak", "told"),
    [
        (40.0, 39.0, "torch here holds 40 GiB: the rest belongs to other processes"),
        (75.0, 50.0, "its tensors took 50 GiB at most: it is fragmented"),
        (75.0, 73.0, "truly full (tensors took 73 of 75 GiB reserved)"),
        (75.0, None, "truly full: take a smaller batch"),
        (None, None, "Take a smaller batch"),
    ],
)
def test_memory(reserved: float | None, peak: float | None, told: str) -> None:
    """Others' memory, fragments and true need are told apart by what torch reserved and used."""
    values = {"perf_gpu0/mem_used_pct": 96.0, "perf_gpu0/mem_used_gib": 76.0}
    if reserved is not None:
        values["perf_gpu0/torch_reserved_gib"] = reserved
    if peak is not None:
        values["perf_gpu0/torch_peak_gib"] = peak
    assert told in advise_memory(values)


def test_memory_of_the_full_device() -> None:
    """Of several devices the numbers are those of the fullest."""
    values = {
        "perf_gpu0/mem_used_pct": 30.0, "perf_gpu0/mem_used_gib": 24.0, "perf_gpu0/torch_reserved_gib": 2.0,
        "perf_gpu1/mem_used_pct": 97.0, "perf_gpu1/mem_used_gib": 77.0, "perf_gpu1/torch_reserved_gib": 76.0,
    }  # fmt: skip
    assert "truly full" in advise_memory(values)


def test_heat() -> None:
    """Heat: cooling and the power limit, with power and clock of now where they are known."""
    advice = advise_heat({"perf_gpu/power_w": 690.0, "perf_gpu/sm_clock_mhz": 1200.0})
    assert "power limit (now 690 W, SM clock 1 200 MHz)" in advice
    assert "now" not in advise_heat({})


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (None, "Keep the loader"),
        ({"num_workers": 0}, "Set num_workers=1 or more"),
        (
            {"num_workers": 4, "persistent_workers": False},
            "Set persistent_workers=True: now 4 workers start anew",
        ),
        ({"num_workers": 4, "persistent_workers": True}, "the wait of 3 s is that for their first batches"),
    ],
)
def test_start_up(facts: dict[str, Any] | None, told: str) -> None:
    """A slow start of passes: by how the loader is set."""
    loader = None if facts is None else LoaderFacts(kind="DataLoader", is_dataloader=True, **facts)
    assert told in advise_startup({"perf_data/first_batch_ms": 3000.0}, loader)


def test_drop() -> None:
    """What changed with the speed is named with what is usual; what did not is not."""
    steady = Steady()
    usual = {"perf/data_pct": 2.0, "perf_gpu/sm_clock_mhz": 1980.0, "perf_host/cpu_pct": 40.0}
    for _ in range(30):
        steady.add(usual)
    slow = {**usual, "perf/data_pct": 3.0, "perf_gpu/sm_clock_mhz": 1200.0, "perf_host/cpu_pct": 95.0}
    assert advise_drop(slow, steady) == (
        "What changed with it: SM clock 1 200 MHz (usually 1 980), CPU use 95 % (usually 40)."
    )
    assert "No other number changed" in advise_drop(usual, steady)


class TestJudge:
    """Each rule's alert carries the advice that is meant for it."""

    def said(self, judge: Judge, values: Mapping[str, float], count: int = 3) -> list[Alert]:
        """Judge windows of these values; return what was said."""
        found = []
        for place in range(count):
            window = SimpleNamespace(
                end_ns=(place + 1) * 2_000_000_000, steps=20, totals=SimpleNamespace(steps=20 * (place + 1))
            )
            found += judge.judge(cast("Window", window), {"perf/step_ms": 100.0, **values}, 0.0)
        return found

    @pytest.fixture(autouse=True)
    def on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the training be one on a GPU."""
        monkeypatch.setattr("trackperf.judge.accelerator_in_use", lambda: "cuda")

    @pytest.mark.parametrize(
        ("values", "rule", "words"),
        [
            ({"perf/gpu_util_pct": 60.0}, "gpu_underused", "larger batch"),
            (
                {"perf/gpu_util_pct": 99.0, "perf_gpu/sm_active_pct": 9.0},
                "gpu_busy_inefficient",
                "CUDA graphs",
            ),
            ({"perf/mem_bw_pct": 80.0, "perf_gpu/sm_active_pct": 9.0}, "bandwidth_bound", "bfloat16"),
            ({"perf_gpu/mem_used_pct": 97.0}, "gpu_memory", "smaller batch"),
            ({"perf_gpu/temp_c": 90.0}, "gpu_temperature", "cooling"),
            ({"perf_data/startup_pct": 50.0}, "loader_startup", "Keep the loader"),
        ],
    )
    def test_advice(self, values: Mapping[str, float], rule: str, words: str) -> None:
        """The sentence goes with the rule."""
        (alert,) = self.said(Judge(build_rules()), values)
        assert alert.rule == rule
        assert words in alert.advice

    def test_a_starving_gpu_is_told_of_the_loader(self) -> None:
        """Low utilisation for want of data is advised as the loader is."""
        judge = Judge(build_rules({"loader_latency": False}))
        judge.loader = LoaderFacts(kind="DataLoader", is_dataloader=True, num_workers=0)
        values = {"perf/gpu_util_pct": 60.0, "perf/data_pct": 40.0, "perf/data_wait_ms": 40.0}
        (alert,) = self.said(judge, values)
        assert (alert.rule, alert.level) == ("gpu_underused", "warning")
        assert "num_workers=" in alert.advice

    def test_notices_are_logged_more_quietly(self, caplog: pytest.LogCaptureFixture) -> None:
        """A warning is logged as one, a notice as information."""
        with caplog.at_level(logging.INFO, logger="trackperf"):
            self.said(Judge(build_rules()), {"perf/gpu_util_pct": 60.0, "perf_gpu/temp_c": 90.0})
        levels = {
            record.args[0]: record.levelno for record in caplog.records if isinstance(record.args, tuple)
        }
        assert levels == {"gpu_underused": logging.INFO, "gpu_temperature": logging.WARNING}

    def test_abstention_is_told_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """What cannot be judged is said once: aloud only for a rule of the user's own."""
        judge = Judge(build_rules({"mine": "perf_gpu/power_w > 500"}))
        with caplog.at_level(logging.INFO, logger="trackperf"):
            self.said(judge, {}, 30)
        told = [record for record in caplog.records if "is not judged so far" in record.getMessage()]
        assert [record.args for record in told if record.levelno == logging.WARNING] == [
            ("mine", "perf_gpu/power_w is not measured")
        ]
        assert len(told) == len(judge.abstained) == 8
        assert judge.flags() == {"perf_alert/throughput_drop": 0.0, "perf_alert/active": 0.0}

    @pytest.mark.parametrize(("with_torch", "judged"), [(True, False), (False, True)])
    def test_torch_on_the_cpu(
        self, monkeypatch: pytest.MonkeyPatch, *, with_torch: bool, judged: bool
    ) -> None:
        """
        A torch that trains on the CPU does not use a GPU that `init(devices=)` names; without torch it is
        the user's word.
        """
        monkeypatch.setattr("trackperf.judge.accelerator_in_use", lambda: None)
        monkeypatch.setitem(sys.modules, "torch", sys)
        if not with_torch:
            monkeypatch.delitem(sys.modules, "torch")
        said = self.said(Judge(build_rules()), {"perf/gpu_util_pct": 60.0})
        assert bool(said) is judged
