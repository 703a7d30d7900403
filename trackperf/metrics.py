"""The catalogue: every series that trackperf writes, described once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CATALOGUE", "HEADLINE", "Metric", "full_key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One series: its key, its unit, what it means and how it is measured."""

    key: str
    """Key as written with the default prefix, such as `perf/samples_per_s`."""

    unit: str
    """Unit of the value; `1` for a count or a flag."""

    title: str
    """A few words, for a chart or a table row."""

    meaning: str
    """What the value says and how it is measured, in a sentence or two."""

    better: Literal["higher", "lower", "neither"] = "neither"
    """Which direction is an improvement."""

    question: str = ""
    """For a headline series: which of the five questions it answers."""

    dashboard: bool = True
    """For a headline series: whether it stands in its question's chart, whose series share a unit."""


def _m(
    key: str,
    unit: str,
    title: str,
    meaning: str,
    better: Literal["higher", "lower", "neither"] = "neither",
    question: str = "",
    *,
    dashboard: bool = True,
) -> Metric:
    return Metric(
        key=key,
        unit=unit,
        title=title,
        meaning=meaning,
        better=better,
        question=question,
        dashboard=dashboard,
    )


_THROUGHPUT: Final = "throughput"
_TIME: Final = "training time"
_GPU: Final = "GPU utilisation"
_BANDWIDTH: Final = "memory-bandwidth utilisation"
_LOADING: Final = "data-loading latency"

QUESTIONS: Final = (_THROUGHPUT, _TIME, _GPU, _BANDWIDTH, _LOADING)
"""The five questions, in the order of the dashboard."""

_ROWS: Final = (
    _m(
        "perf/samples_per_s", "1/s", "samples per second",
        "Samples of the window's steps over the time of those steps, all ranks together.",
        "higher", _THROUGHPUT,
    ),
    _m(
        "perf/tokens_per_s", "1/s", "tokens per second",
        "The same for tokens; only when the user says what a token is (padding is not one).",
        "higher", _THROUGHPUT,
    ),
    _m("perf/step_ms", "ms", "time per step", "Time of the window's steps over their number.", "lower", _TIME, dashboard=False),
    _m(
        "perf/train_s", "s", "training time",
        "Time in warm-up and training since the run began, earlier parts of a resumed run included.",
        "lower", _TIME,
    ),
    _m(
        "perf/gpu_util_pct", "%", "GPU utilisation",
        "Share of time in which a kernel ran: NVML `utilization.gpu`, time-weighted over the window, devices "
        "of this run only.",
        "higher", _GPU,
    ),
    _m(
        "perf/mem_bw_pct", "%", "memory bandwidth",
        "Real DRAM bandwidth over the theoretical maximum: NVML GPM `DRAM_BW_UTIL` between the window's two "
        "ends (Hopper and newer).",
        "higher", _BANDWIDTH,
    ),
    _m(
        "perf/mem_busy_pct", "%", "memory busy",
        "Share of time in which device memory was read or written: NVML `utilization.memory`. Not bandwidth.",
        "neither", _BANDWIDTH,
    ),
    _m(
        "perf/data_pct", "%", "waiting for data",
        "Exposed wait for the loader over step time, first batches apart. On a CPU run: host time inside "
        "`next(loader)`.",
        "lower", _LOADING,
    ),
    _m(
        "perf/data_wait_ms", "ms", "wait for data per step",
        "Mean host time per step inside `next(loader)` and `data()`, first batches apart.",
        "lower", _LOADING, dashboard=False,
    ),
    _m(
        "perf/mfu_pct", "%", "model FLOPs utilisation",
        "FLOP per step over step time over the device's peak; only when FLOPs and peak are known.",
        "higher", _GPU,
    ),
    _m("perf_step/p50_ms", "ms", "median step", "Median of the window's step times.", "lower"),
    _m("perf_step/p95_ms", "ms", "95th percentile step", "95th percentile of the window's step times.", "lower"),
    _m("perf_step/max_ms", "ms", "longest step", "Longest of the window's steps.", "lower"),
    _m(
        "perf_step/device_ms", "ms", "step on the device",
        "Time of a step on the device's own clock, from CUDA events at both sides of each fetch.", "lower",
    ),
    _m("perf_step/samples", "1", "samples per step", "Mean number of samples in a step of the window."),
    _m("perf_time/startup_s", "s", "start-up", "From `init` to the first step.", "lower"),
    _m("perf_time/warmup_s", "s", "warm-up", "Time in the first `warmup_steps` steps of each process.", "lower"),
    _m("perf_time/train_s", "s", "training", "Time in steps after the warm-up, other phases taken out."),
    _m("perf_time/eval_s", "s", "evaluation", 'Time so far in `phase("eval")`.', "lower"),
    _m("perf_time/checkpoint_s", "s", "checkpoints", 'Time so far in `phase("checkpoint")`.', "lower"),
    _m("perf_time/other_s", "s", "between loops", "Time so far in no step and no phase.", "lower"),
    _m("perf_time/wall_s", "s", "wall time", "All phases together: time since the run began, pauses between processes not included.", "lower"),
    _m("perf_time/productive_pct", "%", "productive share", "Training time after the warm-up over wall time.", "higher"),
    _m("perf_time/eta_s", "s", "time left", "Steps left times the wall time a step has taken since the warm-up; needs `total_steps`.", "lower"),
    _m("perf_time/to_goal_s", "s", "time to the goal", "Training time when the goal was first reached.", "lower"),
    _m("perf_time/to_goal_steps", "1", "steps to the goal", "Steps when the goal was first reached.", "lower"),
    _m("perf_data/wait_p95_ms", "ms", "95th percentile wait", "95th percentile of the window's waits for a batch, first batches apart.", "lower"),
    _m("perf_data/wait_max_ms", "ms", "longest wait", "Longest of the window's waits for a batch, first batches included.", "lower"),
    _m("perf_data/exposed_ms", "ms", "exposed wait per step", "Mean time per step that the device had nothing to do for want of data. On a CPU run the same as the wait.", "lower"),
    _m("perf_data/h2d_ms", "ms", "copy to the device", "Mean time per step in `transfer()` or in moving the batch to `device=`.", "lower"),
    _m("perf_data/first_batch_ms", "ms", "first batch", "Mean wait for the first batch of an iterator, worker start-up included.", "lower"),
    _m("perf_data/startup_pct", "%", "loader start-up share", "Waits for first batches over the time of the passes that ended in the window.", "lower"),
    _m("perf_gpu/util_pct", "%", "GPU utilisation", "As `perf/gpu_util_pct`. Each series of `perf_gpu/` is the mean over the run's devices; `perf_gpu0/`, `perf_gpu1/`, ... are each one's own, by its place in the run.", "higher"),
    _m("perf_gpu/util_min_pct", "%", "lowest utilisation", "Least of the values that `perf_gpu/util_pct` is the mean of, over all devices: the driver's own means of 1/6 s to 1 s, or polls where it keeps none."),
    _m("perf_gpu/util_max_pct", "%", "highest utilisation", "The most of them."),
    _m("perf_gpu/util_samples", "1", "samples of utilisation", "How many they are."),
    _m("perf_gpu/sm_active_pct", "%", "SM activity", "Share of time in which a multiprocessor had a warp: NVML GPM `SM_UTIL`.", "higher"),
    _m("perf_gpu/sm_occupancy_pct", "%", "SM occupancy", "Warps on the multiprocessors over the most that fit: NVML GPM `SM_OCCUPANCY`."),
    _m("perf_gpu/tensor_active_pct", "%", "tensor activity", "Share of time in which tensor cores worked: NVML GPM `ANY_TENSOR_UTIL`.", "higher"),
    _m("perf_gpu/mem_bw_gb_s", "GB/s", "memory bandwidth", "`perf/mem_bw_pct` of the theoretical maximum: memory clock x 2 x bus width / 8.", "higher"),
    _m("perf_gpu/mem_busy_pct", "%", "memory busy", "As `perf/mem_busy_pct`."),
    _m("perf_gpu/mem_used_pct", "%", "device memory", "Device memory in use by all processes over its size."),
    _m("perf_gpu/mem_used_gib", "GiB", "device memory", "Device memory in use by all processes."),
    _m("perf_gpu/torch_reserved_gib", "GiB", "reserved by torch", "What torch's allocator holds of it: `memory_reserved`."),
    _m("perf_gpu/torch_peak_gib", "GiB", "peak of torch", "Most that tensors took since your own last reset: `max_memory_allocated`, never reset here."),
    _m("perf_gpu/temp_c", "C", "temperature", "Temperature of the GPU."),
    _m("perf_gpu/thermal_throttle_pct", "%", "thermal throttling", "Share of time with clocks held down by heat, from the driver's cumulative counters where it has them.", "lower"),
    _m("perf_gpu/power_w", "W", "power", "Power draw of the board."),
    _m("perf_gpu/energy_j", "J", "energy", "Energy since the run began."),
    _m("perf_gpu/sm_clock_mhz", "MHz", "SM clock", "Clock of the multiprocessors."),
    _m("perf_gpu/mem_clock_mhz", "MHz", "memory clock", "Clock of the device memory."),
    _m("perf_gpu/pcie_rx_mb_s", "MB/s", "PCIe in", "Bytes to the device: NVML GPM."),
    _m("perf_gpu/pcie_tx_mb_s", "MB/s", "PCIe out", "Bytes from the device: NVML GPM."),
    _m("perf_host/cpu_pct", "%", "CPU use", "CPU time of the process and its workers over the CPUs that it may use (affinity, cgroup limit)."),
    _m("perf_host/rss_gib", "GiB", "host memory", "Resident memory of the process and its workers."),
    _m("perf_rank/samples_per_s", "1/s", "samples per second, this rank", "Rate of rank 0 alone; only in a job of several ranks.", "higher"),
    _m("perf_rank/tokens_per_s", "1/s", "tokens per second, this rank", "Rate of rank 0 alone; only in a job of several ranks.", "higher"),
    _m("perf_alert/loader_latency", "1", "alert: loader latency", "1 while raised: the wait for data is more than 10 % of a step."),
    _m("perf_alert/loader_startup", "1", "alert: loader startup", "1 while raised: waits for first batches are more than 10 % of the passes."),
    _m("perf_alert/gpu_underused", "1", "alert: GPU underused", "1 while raised: GPU utilisation is below 90 %."),
    _m("perf_alert/gpu_busy_inefficient", "1", "alert: GPU busy inefficient", "1 while raised: the GPU is busy, but SM activity is below 50 %: many small kernels."),
    _m("perf_alert/bandwidth_bound", "1", "alert: bandwidth bound", "1 while raised: memory bandwidth is above 60 % while multiprocessors or tensor cores do little."),
    _m("perf_alert/gpu_memory", "1", "alert: GPU memory", "1 while raised: device memory is more than 95 % full, on the fullest device."),
    _m("perf_alert/gpu_temperature", "1", "alert: GPU temperature", "1 while raised: a GPU is above 85 C, or slowed by heat."),
    _m("perf_alert/throughput_drop", "1", "alert: throughput drop", "1 while raised: the rate is below 80 % of the run's own median."),
    _m("perf_alert/active", "1", "alerts raised", "Number of alerts raised now.", "lower"),
    _m("perf_self/us_per_step", "us", "cost of trackperf", "trackperf's own time in the training thread, per step.", "lower"),
    _m("perf_self/dropped_points", "1", "points lost", "Points that a sink did not take, so far.", "lower"),
)  # fmt: skip

CATALOGUE: Final[Mapping[str, Metric]] = MappingProxyType({row.key: row for row in _ROWS})
"""Every series by its key."""

HEADLINE: Final = tuple(row for row in _ROWS if row.question)
"""The series of the headline section, in order."""


@functools.lru_cache(maxsize=4096)
def full_key(key: str, prefix: str) -> str:
    """
    Return a catalogue key as it is written under `prefix`.

    `perf/step_ms` becomes `<prefix>/step_ms`, `perf_time/eval_s` becomes `<prefix>_time/eval_s`.
    """
    if not key.startswith("perf"):
        raise ValueError(f"{key!r} is not a key of the catalogue: those begin with 'perf'")
    return prefix + key.removeprefix("perf")
