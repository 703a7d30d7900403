"""Model FLOPs utilisation: the number, what it is made from, and every way in which there is none."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_parts import messages
from nvml_sim import presets

import trackperf
from trackperf.config import settings_from
from trackperf.devices.counters import CounterFacts
from trackperf.devices.facts import DeviceFacts
from trackperf.flop_counter import StepCount
from trackperf.flops import Flops
from trackperf.registry import read_run
from trackperf.timing.windows import Totals, Window
from trackperf.values import window_values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness import Bench, Maker
    from nvml_sim import Scenario
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]

KEY = "perf/mfu_pct"
PEAK = 989.4e12


def gpu(name: str = "NVIDIA H200", index: int = 0, *, mig: bool = False) -> DeviceFacts:
    """Return a GPU as the driver tells of it."""
    return DeviceFacts(index=index, name=name, mig=mig, state=CounterFacts(state="ok", reason=""))


def flops(*devices: DeviceFacts, ranks: int = 1, torch: tuple[str, ...] = (), **options: Any) -> Flops:
    """Return what is known of a run on some devices."""
    if "flops_per_step" in options:
        options = {"flops_dtype": "bf16", **options}
    settings = settings_from(options, {})
    return Flops(settings, devices=lambda: devices, world_size=ranks, names=lambda: torch)


def window(steps: int = 200, step_s: float = 0.01, tokens: int | None = None) -> Window:
    """Return a window of equal steps."""
    ns = round(steps * step_s * 1e9)
    return Window(
        phase="train", start_ns=0, end_ns=ns, totals=Totals(), steps=steps, busy_ns=ns, tokens=tokens
    )


def mfu(run: Flops, one: Window | None = None) -> float | None:
    """Return the utilisation of a window."""
    one = one or window()
    run.weigh(one)
    return window_values(one).get(KEY)


def counted(run: Flops, blind: tuple[str, ...] = (), **kinds: int) -> Flops:
    """Let a run have counted a step."""
    run.counted.result = StepCount(kinds=kinds, blind=blind)
    return run


def failed(run: Flops) -> Flops:
    """Let a run have failed to count a step."""
    run.counted.failure = "it broke"
    return run


def reason(run: Flops) -> str:
    """Return why a run has no utilisation."""
    return run.absent(tokens_known=True).get(KEY, "")


class TestNumbers:
    """FLOP over time over peak."""

    def test_of_a_step(self) -> None:
        """1e12 FLOP a step at 0.01 s on 989.4 TFLOP/s: 10.107 %."""
        run = flops(gpu(), flops_per_step=1e12)
        assert mfu(run) == pytest.approx(10.107, abs=0.0005)
        assert reason(run) == ""
        facts = run.facts()
        assert (facts["mfu_flop"], facts["mfu_dtype"]) == ("1e+12 a step, given", "bfloat16")
        assert facts["mfu_peak_tflops"] == 989.4
        assert "H200 Tensor Core GPU datasheet, dense" in str(facts["mfu_peak_source"])

    def test_of_a_token(self) -> None:
        """By token it is the window's own tokens that count, not its steps."""
        run = flops(gpu(), flops_per_token=1e9, flops_dtype="bf16")
        assert mfu(run, window(steps=10, tokens=3_000)) == pytest.approx(100 * 3e12 / 0.1 / PEAK)

    def test_merged(self) -> None:
        """Several windows together are sums over sums, of those whose FLOP are known."""
        run = flops(gpu(), flops_per_token=1e9, flops_dtype="bf16")
        one, other, unknown = window(10, 0.01, 100), window(10, 0.03, 500), window(10, 0.05, None)
        for each in (one, other, unknown):
            run.weigh(each)
        one.merge(other)
        one.merge(unknown)
        assert window_values(one)[KEY] == pytest.approx(100 * 600e9 / 0.4 / PEAK)

    def test_several_devices(self) -> None:
        """A process with two GPUs is measured against both."""
        run = flops(gpu(), gpu(index=1), flops_per_step=1e12)
        assert mfu(run) == pytest.approx(10.107 / 2, abs=0.0005)
        assert run.facts()["mfu_peak_tflops"] == 2 * 989.4

    def test_several_ranks(self) -> None:
        """FLOP of a step are those of all ranks, of a token and of a count those of this one."""
        step = flops(gpu(), ranks=4, flops_per_step=1e12)
        assert mfu(step) == pytest.approx(10.107 / 4, abs=0.0005)
        assert step.facts()["mfu_peak_tflops"] == pytest.approx(4 * 989.4)
        token = flops(gpu(), ranks=4, flops_per_token=1e9, flops_dtype="bf16")
        assert mfu(token, window(tokens=200_000)) == pytest.approx(10.107, abs=0.0005)
        assert mfu(counted(flops(gpu(), ranks=4), bfloat16=10**12)) == pytest.approx(10.107, abs=0.0005)

    def test_counted(self) -> None:
        """A counted step gives FLOP and the kind of number; what was given goes first."""
        run = counted(flops(gpu()), float32=10**11)
        assert mfu(run) == pytest.approx(100 * 1e13 / 67e12)
        assert run.facts()["mfu_flop"] == "1e+11 a step of each rank, counted"
        assert mfu(counted(flops(gpu(), flops_per_step=1e12, flops_dtype=None), bfloat16=5)) == pytest.approx(
            10.107, abs=5e-4
        )
        assert mfu(counted(flops(gpu(), flops_dtype="tf32"), bfloat16=10**12)) == pytest.approx(
            20.214, abs=5e-4
        )

    def test_without_tf32(self) -> None:
        """A GPU that has no TF32 is measured by float32, which is what torch multiplies there."""
        run = counted(flops(gpu("Tesla T4")), tf32=10**10)
        assert mfu(run) == pytest.approx(100 * 1e12 / 8.1e12)
        assert run.facts()["mfu_dtype"] == "float32"

    def test_amd(self) -> None:
        """Where NVIDIA's driver says nothing, torch names the device."""
        run = flops(torch=("AMD Instinct MI300X",), flops_per_step=1e12)
        assert mfu(run) == pytest.approx(100 * 1e14 / 1307.4e12)

    def test_a_driver_that_falls_silent(self) -> None:
        """Devices that were known once stay known."""
        answers: list[list[DeviceFacts]] = [[gpu()], []]
        settings = settings_from({"flops_per_step": 1e12, "flops_dtype": "bf16"}, {})
        run = Flops(settings, devices=lambda: answers.pop(0), world_size=1, names=list)
        assert mfu(run) == mfu(run) == pytest.approx(10.107, abs=0.0005)


class TestAbsent:
    """No number without all that it takes, and the reason."""

    @pytest.mark.parametrize(
        ("run", "said"),
        [
            (lambda: flops(gpu()), "flops_per_step"),
            (lambda: flops(gpu(), flops_per_step=1e12, flops_dtype=None), "flops_dtype"),
            (lambda: flops(flops_per_step=1e12), "no device"),
            (lambda: flops(gpu("NVIDIA X1"), flops_per_step=1e12), "'NVIDIA X1' for bfloat16"),
            (lambda: flops(gpu("Tesla T4"), flops_per_step=1e12), "T4"),
            (lambda: flops(gpu(mig=True), flops_per_step=1e12), "MIG"),
            (lambda: flops(gpu(), gpu("?", 1), flops_per_step=1e12), "'?'"),
            (lambda: counted(flops(gpu()), bfloat16=60, float32=40), "bfloat16 60 %, float32 40 %"),
            (lambda: counted(flops(gpu()), ("flash::forward",), bfloat16=60), "flash::forward"),
            (lambda: counted(flops(gpu())), "no FLOP"),
            (lambda: counted(flops(gpu()), float64=60), "float64"),
            (lambda: failed(flops(gpu())), "it broke"),
            (lambda: failed(flops(gpu(), flops_per_step=1e12, flops_dtype=None)), "it broke"),
            (lambda: flops(gpu(), gpu(index=1), ranks=2, devices=[0, 1], flops_per_step=1), "which of them"),
        ],
    )
    def test_reason(self, run: Callable[[], Flops], said: str) -> None:
        """Each thing that is not known is told, and nothing is written."""
        made = run()
        assert said in reason(made)
        assert mfu(made) is None
        assert "mfu_peak_tflops" not in made.facts()

    def test_told_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """Who asked for it is told once why it is not there; who did not ask is not bothered."""
        asked, silent = flops(flops_per_step=1e12), flops()
        for _ in range(3):
            assert mfu(asked) is None
            assert mfu(silent) is None
        assert len(messages(caplog, KEY, "no device", level=logging.WARNING)) == 1
        assert len(messages(caplog, level=logging.WARNING)) == 1

    def test_no_tokens(self, caplog: pytest.LogCaptureFixture) -> None:
        """FLOP of a token need tokens."""
        run = flops(gpu(), flops_per_token=1e9, flops_dtype="bf16")
        assert mfu(run, window(tokens=None)) is None
        assert messages(caplog, KEY, "steps(tokens=...)", level=logging.WARNING)
        assert "tokens" in run.absent(tokens_known=False)[KEY]

    def test_impossible(self, caplog: pytest.LogCaptureFixture) -> None:
        """More than the devices can do is a mistake in what was given: left out, and told."""
        run = flops(gpu(), flops_per_step=1.2e13)
        assert mfu(run) is None
        assert messages(caplog, "more than the devices", "1.2e+13", level=logging.WARNING)

    def test_blind_but_given(self) -> None:
        """FLOP that were given do not depend on what a count could not see."""
        run = counted(flops(gpu(), flops_per_step=1e12, flops_dtype=None), ("flash::forward",), bfloat16=60)
        assert mfu(run) == pytest.approx(10.107, abs=0.0005)


class TestOptions:
    """Checked at `init`."""

    @pytest.mark.parametrize("option", ["flops_per_step", "flops_per_token"])
    @pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), True, "count", [1]])
    def test_no_number(self, option: str, value: Any) -> None:
        """FLOP are a finite number above 0."""
        with pytest.raises(trackperf.ConfigError, match=option):
            settings_from({option: value}, {})

    def test_both(self) -> None:
        """FLOP of a step and of a token cannot both be meant."""
        with pytest.raises(trackperf.ConfigError, match=r"not both .*1e\+12 and 6e\+09"):
            settings_from({"flops_per_step": 1e12, "flops_per_token": 6e9}, {})

    def test_dtype(self) -> None:
        """The kind of number goes by any of its usual names, torch's own object among them."""
        import torch

        for value in ("bf16", "BFloat16", torch.bfloat16, "torch.bfloat16"):
            assert settings_from({"flops_dtype": value}, {}).flops_dtype == "bfloat16"
        with pytest.raises(trackperf.ConfigError, match=r"flops_dtype.*bfloat16.*'int8'"):
            settings_from({"flops_dtype": "int8"}, {})

    def test_environment(self) -> None:
        """They can be said outside of the script."""
        environ = {"TRACKPERF_FLOPS_PER_TOKEN": "6e9", "TRACKPERF_FLOPS_DTYPE": "fp16"}
        settings = settings_from({}, environ)
        assert (settings.flops_per_token, settings.flops_dtype) == (6e9, "float16")


def started(bench: Maker, **options: Any) -> Bench:
    """Return a run whose GPUs are read."""
    run = bench(devices=[0], **options)
    assert run.perf._reporter is not None
    run.perf._reporter.gpus.start()
    return run


class TestRun:
    """A whole run on a simulated machine."""

    def test_given(self, bench: Maker, simulate: Simulate) -> None:
        """The number is in every point after the warm-up, in the summary, and the run says how it came."""
        simulate(presets.h200())
        run = started(bench, flops_per_step=1e12, flops_dtype="bf16", warmup_steps=10)
        for _ in run.perf.steps(run.loader([None] * 1000, 0.002), samples=1):
            run.clock.advance(0.008)
        total = run.total()
        assert run.values(KEY) == [pytest.approx(10.107, abs=0.0005)] * len(run.values(KEY))
        assert len(run.values(KEY)) >= 4
        assert total.metrics[KEY].mean == pytest.approx(10.107, abs=0.0005)
        warm = [point for point in run.sink.points if point.step <= 10]
        assert warm
        assert not any(KEY in point.values for point in warm)
        assert run.sink.info is not None
        assert KEY not in run.sink.info.absent
        assert run.sink.info.environment["mfu_dtype"] == "bfloat16"

    def test_prefix(self, bench: Maker, simulate: Simulate) -> None:
        """The reason stands under the run's own prefix."""
        simulate(replace(presets.h200(), gpus=(replace(presets.H200, name="NVIDIA X1"),)))
        run = started(bench, prefix="speed", flops_per_step=1e12, flops_dtype="bf16")
        for _ in run.perf.steps(run.loader([None] * 300, 0.01), samples=1):
            pass
        run.total()
        assert run.sink.info is not None
        assert "'NVIDIA X1'" in run.sink.info.absent["speed/mfu_pct"]
        assert not run.sink.series("speed/mfu_pct")

    def test_counted(self, bench: Maker, simulate: Simulate) -> None:
        """The first step is counted, with all of its batches; the rest of the run is measured by it."""
        import torch

        simulate(presets.h200())
        layer = torch.nn.Linear(64, 64, bias=False)
        run = started(bench)
        for batch in run.perf.steps(run.loader([torch.randn(8, 64)] * 400, 0.005), accumulate=2):
            with run.perf.count_flops():
                layer(batch).sum().backward()
        run.total()
        step = 2 * 2 * (2 * 8 * 64 * 64)
        assert run.last(KEY) == pytest.approx(100 * step / 0.01 / 67e12)
        assert run.sink.info is not None
        assert run.sink.info.environment["mfu_flop"] == f"{step:.6g} a step of each rank, counted"

    def test_shows_once_counted(self, bench: Maker, simulate: Simulate) -> None:
        """While a step is being counted the run does not show yet: it would say that it has no count."""
        simulate(presets.h200())
        run = started(bench)
        reporter = run.perf._reporter
        assert reporter is not None
        opened = []
        for _ in run.perf.steps([1, 2, 3, 4], samples=1, accumulate=2):
            with run.perf.count_flops():
                pass
            reporter.tick()
            opened.append(reporter._output.opened)
        assert opened == [False, True, True, True]

    def test_blind(self, bench: Maker, simulate: Simulate, caplog: pytest.LogCaptureFixture) -> None:
        """A count that missed an operation gives no number, and the operation is named."""
        import torch

        simulate(presets.h200())
        lstm = torch.nn.LSTM(8, 8)
        run = started(bench)
        for _ in run.perf.steps(run.loader([None] * 300, 0.01), samples=1):
            with run.perf.count_flops():
                lstm(torch.randn(3, 2, 8))
        run.total()
        assert not run.values(KEY)
        assert run.sink.info is not None
        assert "aten::mkldnn_rnn_layer" in run.sink.info.absent[KEY]
        assert len(messages(caplog, "aten::mkldnn_rnn_layer", level=logging.WARNING)) == 1

    def test_validation_in_the_step(
        self, bench: Maker, simulate: Simulate, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What a phase inside the step computes is not the step's, and a loop in a phase is not counted."""
        import torch

        simulate(presets.h200())
        layer, x = torch.nn.Linear(64, 64), torch.randn(8, 64)
        run = started(bench)
        with run.perf.phase("eval"):
            for _ in run.perf.steps([None]):
                with run.perf.count_flops():
                    layer(x)
        assert not messages(caplog, "count_flops", level=logging.WARNING)
        for _ in run.perf.steps(run.loader([None] * 300, 0.01), samples=1):
            with run.perf.count_flops():
                layer(x)
                with run.perf.phase("eval"):
                    layer(x)
        run.total()
        assert run.last(KEY) == pytest.approx(100 * 2 * 8 * 64 * 64 / 0.01 / 67e12)

    def test_around_the_loop(self, bench: Maker, caplog: pytest.LogCaptureFixture) -> None:
        """Around a whole loop it would count all of it as one step: refused, and told."""
        run = bench()
        with run.perf.count_flops():
            for _ in run.perf.steps([1, 2]):
                pass
        assert run.perf._reporter is not None
        assert not run.perf._reporter.flops.counted.settled
        assert messages(caplog, "stands in the loop", level=logging.WARNING)

    def test_nothing_to_count(self, bench: Maker) -> None:
        """Where all is given, or the run is off, counting is nothing."""
        from trackperf.timing.phases import NULL

        run = bench(flops_per_step=1e12, flops_dtype="bf16")
        assert run.perf.count_flops() is NULL
        dtype = bench(flops_per_step=1e12).perf
        with dtype.step(), dtype.count_flops() as found:
            assert found is None
            assert dtype._reporter is not None
            assert dtype._reporter.flops.counted.begun
        assert trackperf.init(enabled=False).count_flops() is NULL
        run.perf.finish()
        assert run.perf.count_flops() is NULL


TRAIN = """
import json, sys, time
import trackperf
perf = trackperf.init(name="x", warmup_steps=0, sink="jsonl", **json.loads(sys.argv[1]))
until = time.perf_counter() + 3
def loader():
    while time.perf_counter() < until:
        yield 1
for _ in perf.steps(loader(), samples=8):
    time.sleep(0.01)
perf.finish()
"""


class TestProcess:
    """A whole process, and what its file says."""

    def run(self, folder: Path, environ: dict[str, str], **options: Any) -> Any:
        """Train, and return the run as it is read back."""
        words = [sys.executable, "-c", TRAIN, json.dumps(options)]
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return read_run(f"jsonl:{folder / 'runs' / 'x'}"), done.stderr

    def test_h200(self, tmp_path: Path, driver_for: Callable[[Scenario], dict[str, str]]) -> None:
        """On a simulated H200 the number is in the file, and it is FLOP over step time over peak."""
        history, _ = self.run(
            tmp_path, driver_for(presets.h200()), devices=[0], flops_per_step=1e12, flops_dtype="bf16"
        )
        found, step_ms = history.series[KEY], history.series["perf/step_ms"]
        assert found.value[-1] == pytest.approx(100 * 1e12 / (step_ms.value[-1] / 1000) / PEAK, rel=1e-6)
        assert history.info.environment["mfu_peak_tflops"] == 989.4
        assert KEY in history.summary.metrics

    def test_cpu(self, tmp_path: Path, driver_for: Callable[[Scenario], dict[str, str]]) -> None:
        """On a CPU there is no number, and file and log say why, once."""
        history, said = self.run(
            tmp_path, driver_for(presets.no_driver()), flops_per_step=1e12, flops_dtype="bf16"
        )
        assert KEY not in history.series
        assert "no device" in history.info.absent[KEY]
        assert said.count(KEY) == 1
