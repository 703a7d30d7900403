"""Pure functions from a window to the values that are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trackperf.timing.windows import Totals, Window

__all__ = ["total_values", "window_values"]

_MS: Final = 1e-6
_S: Final = 1e-9


def window_values(
    window: Window, *, world_size: int = 1, accelerator: str | None = None, counted: bool = True
) -> dict[str, float]:
    """
    Return the values of a window by catalogue key; what was not measured is not in it.

    Args:
        window: one window, or several merged.

        world_size: number of ranks; with more than one, this rank's rates go by another name.

        accelerator: the kind of device whose queue hides the host's waits, None on a CPU. There, host time
            is no measure of an exposed wait or of a copy, and nothing is written in their name.

        counted: False for the warm-up, which has no rates and no quantiles.
    """
    values: dict[str, float] = {}
    if window.busy_ns <= 0:
        return values
    values["perf/step_ms"] = window.busy_ns / window.steps * _MS
    if window.step_ms.n:
        values["perf_step/max_ms"] = window.step_ms.largest
    if window.first_batches:
        values["perf_data/first_batch_ms"] = window.first_wait_ns / window.first_batches * _MS
    if counted:
        values |= _rates(window, world_size) | _waits(window, accelerator) | _on_device(window)
    if window.probes:
        values["perf_self/us_per_step"] = (
            window.cost_ns / window.probes * window.batches / window.steps / 1000
        )
    return values


def total_values(totals: Totals) -> dict[str, float]:
    """Return training time and the seconds in each phase so far, by catalogue key."""
    values = {f"perf_time/{name}_s": ns * _S for name, ns in totals.phase_ns.items()}
    values["perf/train_s"] = totals.train_ns * _S
    values["perf_time/wall_s"] = totals.wall_ns * _S
    if totals.wall_ns > 0:
        values["perf_time/productive_pct"] = 100 * totals.phase_ns.get("train", 0) / totals.wall_ns
    return values


def _rates(window: Window, world_size: int) -> dict[str, float]:
    seconds = window.busy_ns * _S
    section = "perf" if world_size == 1 else "perf_rank"
    values: dict[str, float] = {}
    if window.samples is not None:
        values[f"{section}/samples_per_s"] = window.samples / seconds
        values["perf_step/samples"] = window.samples / window.steps
    if window.tokens is not None:
        values[f"{section}/tokens_per_s"] = window.tokens / seconds
    if window.ideal_of_ns:
        values["perf/mfu_pct"] = 100 * window.ideal_ns / window.ideal_of_ns
    if window.step_ms.n:
        values["perf_step/p50_ms"] = window.step_ms.quantile(0.5)
        values["perf_step/p95_ms"] = window.step_ms.quantile(0.95)
    return values


def _waits(window: Window, accelerator: str | None) -> dict[str, float]:
    values: dict[str, float] = {}
    if window.passes_ns > 0:
        values["perf_data/startup_pct"] = 100 * window.passes_first_ns / window.passes_ns
    if window.waits:
        values["perf_data/wait_max_ms"] = window.longest_wait_ns * _MS
    usual = window.waits - window.first_batches
    if usual > 0:
        # A first batch is left out whole, wait and body: the share is that of the steps that are left.
        wait_ms = window.wait_ns / usual * window.batches / window.steps * _MS
        values["perf/data_wait_ms"] = wait_ms
        if window.wait_ms.n:
            values["perf_data/wait_p95_ms"] = window.wait_ms.quantile(0.95)
        busy_ns = window.busy_ns - window.first_busy_ns
        if accelerator is None and busy_ns > 0:
            values["perf/data_pct"] = 100 * window.wait_ns / busy_ns
            values["perf_data/exposed_ms"] = wait_ms
    if accelerator is None and window.transfer_ns is not None:
        values["perf_data/h2d_ms"] = window.transfer_ns / window.steps * _MS
    return values


def _on_device(window: Window) -> dict[str, float]:
    """Return what the device's own clock says; the shares of its batches stand for those that it missed."""
    values: dict[str, float] = {}
    a_step = window.batches / window.steps * _MS
    if window.device_batches and window.device_ns > 0:
        values["perf/data_pct"] = 100 * window.exposed_ns / window.device_ns
        values["perf_data/exposed_ms"] = window.exposed_ns / window.device_batches * a_step
        values["perf_step/device_ms"] = window.device_ns / window.device_batches * a_step
    if window.copied_batches:
        values["perf_data/h2d_ms"] = window.copied_ns / window.copied_batches * a_step
    return values
