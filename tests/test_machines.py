"""Whole processes on simulated machines: what `doctor` and `demo` say, and what a run writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from nvml_sim import cannot_build, environment, presets

from trackperf.registry import read_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvml_sim import Scenario

pytest_plugins = ["nvml_sim.fixtures"]

SAID = Path(__file__).parent / "machines"
"""What is said on each machine, with `#` for what is this computer's own."""

TRAIN = """
import sys, time
import trackperf
sinks = ["tensorboard", "jsonl"]
perf = trackperf.init(name="x", warmup_steps=0, devices={devices}, sink=sinks, interval_s=1.0)
until = time.perf_counter() + 2.3
def loader():
    while time.perf_counter() < until:
        time.sleep(0.002)
        yield 1
for _ in perf.steps(loader(), samples=8):
    time.sleep(0.01)
perf.finish()
"""

DOCTOR = """
import sys
from trackperf.cli import main
sys.exit(main(["doctor"]) or print("JSON", flush=True) or main(["doctor", "--json"]))
"""

DEMOS = """
import json, os, pathlib, sys
import tensorboard, torch._dynamo, trackperf.run, torch.utils.data, trackperf_tensorboard
from trackperf.cli import main
from trackperf.demo import data, show, training
os.mkdir("images")
data._FILE_SIDE, data._VALIDATION = 40, 50
training.BATCH, training._EVALUATIONS, training._WIDTH = 4, 1, 8
images = data.write_images(pathlib.Path("images"))
show.write_images = lambda folder: images
for machine, environ in json.loads(sys.argv[1]).items():
    os.symlink(os.path.abspath(f"{machine}/libnvidia-ml.so.1"), "driver/libnvidia-ml.so.1")
    child = os.fork()
    if not child:
        os.environ.update(environ)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{machine}.{name}", os.O_WRONLY | os.O_CREAT), number)
        sys.exit(main(["demo", "--steps", "8", "--dir", f"{machine}-runs"]))
    _, status = os.waitpid(child, 0)
    os.unlink("driver/libnvidia-ml.so.1")
    if status:
        sys.exit(f"{machine}: {open(machine + '.err').read()}")
"""
"""
The demo on one machine after another, at a size that shows what it says and proves nothing: what takes long
is imported and drawn once, and each machine has a process of its own, which finds that machine's driver.
"""


def run(words: list[str], folder: Path, environ: dict[str, str], limit_s: float = 100.0) -> str:
    """Run a process to its end and return what it printed; it must have gone well."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "COLUMNS": "160", **environ},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def on(machine: str, environ: dict[str, str]) -> dict[str, str]:
    """Return the variables of a process on a machine: where a GPU is in slices, one of them is its own."""
    return environ | ({"CUDA_VISIBLE_DEVICES": presets.MIG_UUID} if machine == "divided" else {})


def expected(machine: str, command: str) -> str:
    """Return what a command says on a machine."""
    return (SAID / f"{command}-{machine}.txt").read_text(encoding="utf-8")


def lines_of(printed: str) -> list[str]:
    """Return lines without what only sets them apart."""
    lines = (re.sub(r"\s+", " ", re.sub("─+", "", line)).strip() for line in printed.splitlines())
    return [line for line in lines if line]


def doctor_masked(printed: str) -> str:
    """Return what `doctor` says of GPUs and series: with what is installed here left out."""
    lines = lines_of(printed)
    lines = [line for line in lines[: lines.index("sink comes with state")] if "model FLOPs" not in line]
    masks = {
        r"^trackperf .* on Python .*": "trackperf #",
        r"^CPU .*: this process may use .*": "CPU #",
        r"^memory \S+ GiB": "memory # GiB",
        r"^torch [^:]*": "torch #",
        r"^(TensorBoard) \S+, opens with: .* --logdir runs$": r"\1 #",
    }
    for pattern, mask in masks.items():
        lines = [re.sub(pattern, mask, line) for line in lines]
    return "\n".join(lines) + "\n"


def demo_masked(printed: str) -> str:
    """Return what the demo says, with `#` for numbers; what follows from how they fall is left out."""
    # A long verdict goes on in a second line.
    printed = re.sub(r"^(fed (?:is|and) .*[^.\n])\n", r"\1 ", printed, flags=re.MULTILINE)
    lines = [re.sub(r"\d+(?:[.,]\d+)?(?: \d{3})*", "#", line) for line in lines_of(printed)]
    masks = {
        r"#(?: ms| s)\b": "# s",
        r"[+-]# %": "#",
        r" (better|worse|same|neutral)$": "",
        r"^(fed is .* than starving|fed and starving are the same).*": "verdict",
        r"^(See both runs:) .*": r"\1 #",
        r"^(.*\)) # # .*$": r"\1 # #",
        r"^(samples per second) .*": r"\1 # #",
        r"val/accuracy >= # (after # s|not reached)": "goal",
    }
    for pattern, mask in masks.items():
        lines = [re.sub(pattern, mask, line) for line in lines]
    chance = ("Computing a step took", "Alert ", "Advice: ", "No alert: ")
    kept = [line for line in lines if not line.startswith(chance) and "model FLOPs" not in line]
    return "\n".join(kept) + "\n"


MACHINES = ("h200", "a100", "rtx_4090", "divided", "wsl", "no_driver")


@pytest.mark.parametrize("machine", MACHINES)
def test_doctor(machine: str, tmp_path: Path, driver_for: Callable[[Scenario], dict[str, str]]) -> None:
    """Each GPU with its name, peak and match; each number that it does not give, with the reason."""
    environ = on(machine, driver_for(getattr(presets, machine)()))
    printed, _, as_json = run([sys.executable, "-c", DOCTOR], tmp_path, environ).partition("JSON\n")
    assert len(printed.splitlines()) <= 45
    said = doctor_masked(printed)
    assert said == expected(machine, "doctor")
    found: dict[str, Any] = json.loads(as_json)
    for reason in {found["absent"].get(f"perf/{name}") for name in ("gpu_util_pct", "mem_bw_pct")} - {None}:
        assert f"no: {reason}" in said
    assert not set(found["measured"]) & set(found["absent"])


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the demo has said on each machine; it has run on all of them."""
    reason = cannot_build()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("demos")
    (folder / "driver").mkdir()
    machines = {name: on(name, environment(getattr(presets, name)(), folder / name)) for name in MACHINES}
    small = {"TRACKPERF_INTERVAL_S": "0.1", "TRACKPERF_WARMUP_STEPS": "2"}
    environ = {**small, "LD_LIBRARY_PATH": str(folder / "driver")}
    run([sys.executable, "-c", DEMOS, json.dumps(machines)], folder, environ, limit_s=280.0)
    return folder


@pytest.mark.xdist_group("demos")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine", MACHINES)
def test_demo(machine: str, demos: Path) -> None:
    """
    The demo trains on the CPU: it shows no number of a GPU that it does not use, and says why there is none.
    """
    printed = (demos / f"{machine}.out").read_text()
    assert demo_masked(printed) == expected(machine, "demo")
    told = (demos / f"{machine}.err").read_text().splitlines()
    assert not [line for line in told if "loader_latency raised" not in line]
    for name in ("starving", "fed"):
        history = read_run(str(demos / f"{machine}-runs" / "demo" / name))
        assert history.info is not None
        assert history.info.absent["perf/gpu_util_pct"] in printed
        assert not [key for key in history.series if "gpu" in key or "mem_b" in key]
        assert history.summary is not None
        assert not history.summary.dropped


def test_a_run_on_an_h200(tmp_path: Path, driver_for: Callable[[Scenario], dict[str, str]]) -> None:
    """All five headline numbers of a run on a simulated H200 are in its files, with the right values."""
    run([sys.executable, "-c", TRAIN.format(devices=[0])], tmp_path, driver_for(presets.h200()))
    for reader in ("tensorboard", "jsonl"):
        history = read_run(f"{reader}:{tmp_path / 'runs' / 'x'}")
        busy = presets.BUSY
        for key, right in (
            ("perf/gpu_util_pct", busy.util_pct),
            ("perf/mem_busy_pct", busy.mem_busy_pct),
            ("perf/mem_bw_pct", busy.dram_pct),
            ("perf_gpu/sm_active_pct", busy.sm_active_pct),
            ("perf_gpu0/power_w", busy.power_w),
            ("perf_gpu/temp_c", busy.temp_c),
        ):
            assert right is not None
            assert history.series[key].value[-1] == pytest.approx(right, rel=0.02), key
        for key in ("perf/samples_per_s", "perf/train_s", "perf/data_pct", "perf/step_ms"):
            assert history.series[key].value[-1] > 0
        assert history.series["perf_gpu/mem_bw_gb_s"].value[-1] == pytest.approx(0.37 * 4917, rel=0.02)
        assert history.info is not None
        assert history.info.environment["gpu0"] == "NVIDIA H200"
        assert history.info.environment["gpu0_match"] == "given"
        assert history.summary is not None
        assert history.summary.metrics["perf/gpu_util_pct"].p50 == pytest.approx(92, rel=0.02)


def test_a_run_on_an_a100(tmp_path: Path, driver_for: Callable[[Scenario], dict[str, str]]) -> None:
    """A GPU without GPM has no memory bandwidth, not zero, and the run says why."""
    run([sys.executable, "-c", TRAIN.format(devices=[0])], tmp_path, driver_for(presets.a100()))
    history = read_run(f"tensorboard:{tmp_path / 'runs' / 'x'}")
    assert history.series["perf/gpu_util_pct"].value[-1] == pytest.approx(92, rel=0.02)
    assert "perf/mem_bw_pct" not in history.series
    assert history.info is not None
    assert "Hopper" in history.info.absent["perf/mem_bw_pct"]


def test_two_gpus_of_one_run(tmp_path: Path, driver_for: Callable[[Scenario], dict[str, str]]) -> None:
    """A run on two GPUs has each one's series, and their mean in the headline."""
    scenario = presets.two_gpus()
    run([sys.executable, "-c", TRAIN.format(devices=[0, 1])], tmp_path, driver_for(scenario))
    series = read_run(f"jsonl:{tmp_path / 'runs' / 'x'}").series
    single = [series[f"perf_gpu{index}/util_pct"].value[-1] for index in (0, 1)]
    assert single[0] != single[1]
    assert series["perf/gpu_util_pct"].value[-1] == pytest.approx(sum(single) / 2, rel=0.02)


def test_a_run_that_does_not_use_the_gpu(
    tmp_path: Path, driver_for: Callable[[Scenario], dict[str, str]]
) -> None:
    """A training of torch on the CPU of a machine with a GPU has no GPU numbers, and says why."""
    code = "import torch\n" + TRAIN.format(devices=None)
    run([sys.executable, "-c", code], tmp_path, driver_for(presets.h200()))
    history = read_run(f"tensorboard:{tmp_path / 'runs' / 'x'}")
    assert "perf/gpu_util_pct" not in history.series
    assert history.info is not None
    assert "torch does not use a CUDA device" in history.info.absent["perf/gpu_util_pct"]
    assert history.series["perf/data_pct"].value[-1] > 0
