"""What tests ask of a simulated machine, in short."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvml_sim.simulation import Simulation

__all__ = ["code_of", "gpm_between", "handle", "utilisation"]


def _pynvml() -> Any:
    return importlib.import_module("pynvml")


def handle(index: int = 0) -> Any:
    """Return a device by the driver's index."""
    return _pynvml().nvmlDeviceGetHandleByIndex(index)


def utilisation(index: int = 0) -> int:
    """Return the utilisation of a device by the driver's index."""
    return int(_pynvml().nvmlDeviceGetUtilizationRates(handle(index)).gpu)


def code_of(call: Callable[[], object]) -> int:
    """Return the code of the error that a call raises."""
    with pytest.raises(_pynvml().NVMLError) as caught:
        call()
    return int(caught.value.value)


def gpm_between(
    sim: Simulation, start_s: float, end_s: float, *metrics: int, device: Any = None
) -> list[tuple[int, float]]:
    """Return code and value of metrics between two moments, of the first device unless told."""
    pynvml = _pynvml()
    device = handle() if device is None else device
    asked = pynvml.c_nvmlGpmMetricsGet_t(version=pynvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(metrics))
    for i, metric in enumerate(metrics):
        asked.metrics[i].metricId = metric
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample, s in zip(samples, (start_s, end_s), strict=True):
        sim.set_time(s)
        pynvml.nvmlGpmSampleGet(device, sample)
    asked.sample1, asked.sample2 = samples
    pynvml.nvmlGpmMetricsGet(asked)
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)
    return [(metric.nvmlReturn, metric.value) for metric in asked.metrics[: len(metrics)]]
