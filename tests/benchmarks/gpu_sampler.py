"""
What reading eight GPUs at the default rate costs: `python tests/benchmarks/gpu_sampler.py WINDOWS`.

CPU time of a process that does nothing else, the simulated driver's own share included.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from nvml_sim import Scenario, Simulation, cannot_build, presets

from trackperf.devices.gpu import GpuReadings

if TYPE_CHECKING:
    from benchmarks.report import Report
    from benchmarks.rows import Sizes

__all__ = ["gpu_readings", "sampler_share"]

GPUS: Final = 8
WINDOW_S: Final = 2.0
_FLOOR_PCT: Final = 0.5
_SECTION: Final = "GPU readings: CPU time, of one core"


def gpu_readings(report: Report, sizes: Sizes) -> None:
    """Measure in a process of its own, in which nothing else runs."""
    reason = cannot_build()
    if importlib.util.find_spec("pynvml") is None:
        reason = "nvidia-ml-py is not installed"
    if reason is not None:
        report.skipped.append(f"GPU readings: {reason}")
        return
    command = [sys.executable, str(Path(__file__)), str(sizes.of(5, least=1))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120)
    told = json.loads(done.stdout)
    report.figure(_SECTION, f"{GPUS} simulated GPUs, a window every {WINDOW_S:g} s", told["share_pct"], "%")
    report.figure(_SECTION, "series a window", told["series"], "series")
    report.at_most(f"GPU readings: {GPUS} GPUs, share of one core", told["share_pct"], _FLOOR_PCT, "%")


def sampler_share(windows: int = 10) -> tuple[float, int]:
    """
    Return the share of one core, in %, that reading eight GPUs takes, and the number of series in a window.

    Args:
        windows: how many, of two seconds each.
    """
    gpus = tuple(
        replace(presets.H200, uuid=f"GPU-{place}", bus=f"00000000:{0x18 + place:02X}:00.0")
        for place in range(GPUS)
    )
    series = 0
    with Simulation(Scenario(gpus=gpus), virtual=False):
        readings = GpuReadings(rank_devices=lambda: None)
        readings.start()
        readings.describe()
        pause = threading.Event()
        # The first windows also find out which devices there are, and what each can be asked.
        for _ in range(4):
            window_ns = time.perf_counter_ns()
            pause.wait(0.25)
            readings.read(window_ns, time.perf_counter_ns())
        begin_cpu, begin_ns = time.process_time_ns(), time.perf_counter_ns()
        window_ns = begin_ns
        for _ in range(windows):
            pause.wait(WINDOW_S)
            series = len(readings.read(window_ns, window_ns := time.perf_counter_ns()))
        share = 100 * (time.process_time_ns() - begin_cpu) / (time.perf_counter_ns() - begin_ns)
        readings.close()
    return share, series


if __name__ == "__main__":
    share_pct, count = sampler_share(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    print(json.dumps({"share_pct": share_pct, "series": count}))
