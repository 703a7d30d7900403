"""
What reading eight GPUs at the default rate costs: `python tests/benchmarks/gpu_sampler.py`.

CPU time of a process that does nothing else, the simulated driver's own share included.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from nvml_sim import Scenario, Simulation, presets

from trackperf.devices.gpu import GpuReadings

__all__ = ["sampler_share"]

GPUS = 8
WINDOW_S = 2.0


def sampler_share(windows: int = 10) -> float:
    """
    Return the share of one core, in %, that reading eight GPUs takes.

    Args:
        windows: how many, of two seconds each.
    """
    gpus = tuple(
        replace(presets.H200, uuid=f"GPU-{place}", bus=f"00000000:{0x18 + place:02X}:00.0")
        for place in range(GPUS)
    )
    with Simulation(Scenario(gpus=gpus), virtual=False):
        readings = GpuReadings(rank_devices=lambda: None)
        readings.start()
        readings.describe()
        pause = threading.Event()
        begin_cpu, begin_ns = time.process_time_ns(), time.perf_counter_ns()
        window_ns = begin_ns
        for _ in range(windows):
            pause.wait(WINDOW_S)
            readings.read(window_ns, window_ns := time.perf_counter_ns())
        share = 100 * (time.process_time_ns() - begin_cpu) / (time.perf_counter_ns() - begin_ns)
        readings.close()
    return share


if __name__ == "__main__":
    print(f"{GPUS} simulated GPUs, a window every {WINDOW_S:g} s: {sampler_share():.3f} % of one core")
