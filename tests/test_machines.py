"""Whole processes on simulated machines: what `doctor` says, and what a run writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from nvml_sim import presets

from trackperf.registry import read_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nvml_sim import Scenario

pytest_plugins = ["nvml_sim.fixtures"]

TRAIN = """
import sys, time
import trackperf
perf = trackperf.init(name="x", warmup_steps=0, devices={devices}, sink=["tensorboard", "jsonl"])
until = time.perf_counter() + 4.5
def loader():
    while time.perf_counter() < until:
        time.sleep(0.002)
        yield 1
for _ in perf.steps(loader(), samples=8):
    time.sleep(0.01)
perf.finish()
"""


def run(words: list[str], folder: Path, environ: dict[str, str]) -> str:
    """Run a process to its end and return what it printed; it must have gone well."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "COLUMNS": "160", **environ},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MACHINES = [
    ("h200", ["NVIDIA H200", "140 GiB", "peak 4 917 GB/s", "GPM"], {}),
    ("a100", ["NVIDIA A100-SXM4-80GB", "peak 2 039 GB/s", "no GPM"], {"mem_bw_pct": "Hopper or newer"}),
    ("rtx_4090", ["RTX 4090", "peak 1 008 GB/s", "no GPM"], {"mem_bw_pct": "Hopper or newer"}),
    ("divided", ["found by mig", "MIG"], {"gpu_util_pct": "MIG", "mem_busy_pct": "MIG"}),
    (
        "wsl",
        ["RTX 4090", "no GPM"],
        {
            "gpu_util_pct": "does not report",
            "mem_busy_pct": "does not report",
            "mem_bw_pct": "Hopper or newer",
        },
    ),
    (
        "no_driver",
        ["none that this process can see"],
        dict.fromkeys(("gpu_util_pct", "mem_bw_pct", "mem_busy_pct"), "no NVIDIA driver was found"),
    ),
]


@pytest.mark.parametrize(("machine", "said", "absent"), MACHINES, ids=[name for name, _, _ in MACHINES])
def test_doctor(
    machine: str,
    said: list[str],
    absent: dict[str, str],
    tmp_path: Path,
    driver_for: Callable[[Scenario], dict[str, str]],
) -> None:
    """Each GPU with its name, peak and match; each number that it does not give, with the reason."""
    environ = driver_for(getattr(presets, machine)())
    if machine == "divided":
        environ["CUDA_VISIBLE_DEVICES"] = presets.MIG_UUID
    command = [sys.executable, "-m", "trackperf", "doctor"]
    printed = run(command, tmp_path, environ)
    for words in said:
        assert words in printed
    assert len(printed.splitlines()) <= 45
    found: dict[str, Any] = json.loads(run([*command, "--json"], tmp_path, environ))
    for name in ("gpu_util_pct", "mem_bw_pct", "mem_busy_pct"):
        if name in absent:
            assert absent[name] in found["absent"][f"perf/{name}"]
            assert f"perf/{name}" not in found["measured"]
        else:
            assert f"perf/{name}" in found["measured"]


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
