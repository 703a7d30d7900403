"""The rules that stand when the user says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trackperf.rule import Rule, Side
from trackperf.steady import rate_key
from trackperf.text import duration, number, percent

if TYPE_CHECKING:
    from trackperf.rule import Values
    from trackperf.steady import Steady

__all__ = ["DATA_SHARE", "SHIPPED", "SM_LOW", "UTIL_HIGH", "worst_device"]

DATA_SHARE: Final = 10.0
"""Exposed wait in per cent of a step from which the loader is to blame."""

SM_LOW: Final = 50.0
"""SM activity in per cent below which most of a busy device does nothing."""

UTIL_HIGH: Final = 90.0
"""GPU utilisation in per cent from which a device counts as busy."""

_UNUSED: Final = 1.0
_BANDWIDTH_HIGH: Final = 60.0
_TENSOR_LOW: Final = 15.0
_SLACK: Final = 5.0
"""By how much a second condition may be missed once the rule is raised."""

_NOISE: Final = 2.5
_START_STEPS: Final = 2.0
_DEVICES: Final = 16
_UTIL, _SM, _BW, _TENSOR = (
    "perf/gpu_util_pct", "perf_gpu/sm_active_pct", "perf/mem_bw_pct", "perf_gpu/tensor_active_pct",
)  # fmt: skip
_THROTTLE: Final = "perf_gpu/thermal_throttle_pct"


def worst_device(values: Values, name: str) -> tuple[str, float] | None:
    """Return the section and the value of the device where a series is highest, None where none has it."""
    found = [
        (value, f"perf_gpu{index}")
        for index in range(_DEVICES)
        if (value := values.get(f"perf_gpu{index}/{name}")) is not None
    ]
    if found:
        value, section = max(found)
        return section, value
    mean = values.get(f"perf_gpu/{name}")
    return None if mean is None else ("perf_gpu", mean)


def _loader_cause(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
    share = values["perf/data_pct"]
    cause = f"the loader keeps the training waiting for {percent(share)} of each step"
    step_ms = values.get("perf/step_ms")
    if step_ms is None:
        return cause
    return f"{cause} ({duration(share * step_ms / 1e5)} of {duration(step_ms / 1e3)})"


def _loader_advice(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
    return "Prepare batches in the background (num_workers of a DataLoader), or prepare less for each."


def _startup_side(values: Values, steady: Steady, raised: bool) -> Side:  # noqa: ARG001 - a shape
    first_ms, step_ms = values.get("perf_data/first_batch_ms"), values.get("perf/step_ms")
    # In a pass of a few steps any first batch is a tenth of it.
    usual = first_ms is not None and step_ms is not None and first_ms < _START_STEPS * step_ms
    return Side.HEALTHY if usual else Side.BY_VALUE


def _startup_cause(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
    first_ms = values.get("perf_data/first_batch_ms")
    taken = "" if first_ms is None else f" ({duration(first_ms / 1e3)} each time)"
    return f"waiting for the first batch takes {percent(values['perf_data/startup_pct'])} of a pass{taken}"


def _underused_value(values: Values, steady: Steady) -> float | str:  # noqa: ARG001 - the shape of a measure
    value = values.get(_UTIL)
    if value is None:
        return f"{_UTIL} is not measured"
    return "nothing of this run ran on the device" if value < _UNUSED else value


def _underused_louder(values: Values) -> bool:
    return values.get("perf/data_pct", 0.0) > DATA_SHARE or values.get(_SM, 100.0) < SM_LOW


def _underused_cause(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
    cause = f"a kernel ran for only {percent(values[_UTIL])} of the time"
    evidence = []
    if (share := values.get("perf/data_pct")) is not None:
        evidence.append(f"the wait for data is {percent(share)} of a step")
    if (active := values.get(_SM)) is not None:
        evidence.append(f"SM activity is {percent(active)}")
    return f"{cause} ({', '.join(evidence)})" if evidence else cause


def _inefficient_side(values: Values, steady: Steady, raised: bool) -> Side | str:  # noqa: ARG001 - a shape
    util = values.get(_UTIL)
    if util is None:
        return f"{_UTIL} is not measured"
    busy = util >= (UTIL_HIGH - _SLACK if raised else UTIL_HIGH)
    return Side.BY_VALUE if busy and values.get(_BW, 0.0) <= _BANDWIDTH_HIGH else Side.HEALTHY


def _inefficient_cause(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
    return (
        f"the GPU counts as busy for {percent(values[_UTIL])} of the time, but on average only "
        f"{percent(values[_SM])} of its multiprocessors work: many small kernels"
    )


def _bandwidth_side(values: Values, steady: Steady, raised: bool) -> Side | str:  # noqa: ARG001 - a shape
    slack = _SLACK if raised else 0.0
    active, tensor = values.get(_SM), values.get(_TENSOR)
    if active is None and tensor is None:
        return f"neither {_SM} nor {_TENSOR} is measured"
    # A multiprocessor whose warps wait for memory counts as active: tensor cores at rest say it, too.
    idle = (active is not None and active < SM_LOW + slack) or (
        tensor is not None and tensor < _TENSOR_LOW + slack
    )
    return Side.BY_VALUE if idle else Side.HEALTHY


def _bandwidth_cause(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
    shares = (("SM activity", _SM), ("tensor activity", _TENSOR))
    low = [f"{name} is {percent(values[key])}" for name, key in shares if key in values]
    speed = values.get("perf_gpu/mem_bw_gb_s")
    rate = "" if speed is None else f" ({number(speed)} GB/s)"
    return f"device memory moves at {percent(values[_BW])} of its peak{rate} while {' and '.join(low)}"


def _memory_value(values: Values, steady: Steady) -> float | str:  # noqa: ARG001 - the shape of a measure
    worst = worst_device(values, "mem_used_pct")
    return "perf_gpu/mem_used_pct is not measured" if worst is None else worst[1]


def _memory_cause(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
    section, used = worst_device(values, "mem_used_pct") or ("perf_gpu", 0.0)
    gib = values.get(f"{section}/mem_used_gib")
    held = "" if gib is None else f" ({number(gib)} GiB of {number(100 * gib / used)} GiB)"
    return f"the memory of {_named(section)} is {percent(used)} full{held}"


def _heat_value(values: Values, steady: Steady) -> float | str:  # noqa: ARG001 - the shape of a measure
    worst = worst_device(values, "temp_c")
    return "perf_gpu/temp_c is not measured" if worst is None else worst[1]


def _heat_side(values: Values, steady: Steady, raised: bool) -> Side:  # noqa: ARG001 - a shape
    return Side.BEYOND if values.get(_THROTTLE, 0.0) > 0 else Side.BY_VALUE


def _heat_cause(values: Values, steady: Steady) -> str:  # noqa: ARG001 - the shape of a writer
    section, degrees = worst_device(values, "temp_c") or ("perf_gpu", 0.0)
    cause = f"{_named(section)} is at {number(degrees)} C"
    slowed = worst_device(values, "thermal_throttle_pct")
    if slowed is not None and slowed[1] > 0:
        cause += f"; heat held the clocks of {_named(slowed[0])} down for {percent(slowed[1])} of the time"
    return cause


def _named(section: str) -> str:
    return f"GPU {section.removeprefix('perf_gpu')}" if section != "perf_gpu" else "the GPU"


def _speed(values: Values, steady: Steady) -> float | str:
    key = rate_key(values)
    if key is None:
        return "no rate is measured"
    usual = steady.median(key)
    if not usual:
        return "too few windows so far to know what is usual in this run"
    return 100 * (usual / values[key] if key == "perf/step_ms" else values[key] / usual)


def _speed_side(values: Values, steady: Steady, raised: bool) -> Side:
    key = rate_key(values)
    usual, noise = (steady.median(key), steady.noise(key)) if key else (None, None)
    if raised or key is None or not usual or noise is None:
        return Side.BY_VALUE
    apart = values[key] - usual if key == "perf/step_ms" else usual - values[key]
    return Side.BY_VALUE if apart > _NOISE * noise else Side.HEALTHY


def _speed_cause(values: Values, steady: Steady) -> str:
    key = rate_key(values) or ""
    units = {"perf/step_ms": " ms a step"}
    unit = units.get(key, " tokens/s" if key.endswith("tokens_per_s") else " samples/s")
    now, usual = values[key], steady.median(key) or 0.0
    return (
        f"the training runs at {percent(float(_speed(values, steady)))} of its own steady pace "
        f"({number(now)}{unit}, the median of this run is {number(usual)})"
    )


SHIPPED: Final = (
    Rule(name="loader_latency", level="warning", key="perf/data_pct", threshold=DATA_SHARE, clear=8.0,
         cause=_loader_cause, advice=_loader_advice),
    Rule(name="loader_startup", level="notice", key="perf_data/startup_pct", threshold=10.0, clear=8.0,
         clear_windows=2, min_steps=20, side=_startup_side, cause=_startup_cause,
         inputs=("perf_data/startup_pct", "perf_data/first_batch_ms", "perf/data_wait_ms")),
    Rule(name="gpu_underused", level="notice", key=_UTIL, threshold=UTIL_HIGH, clear=92.0, direction="below",
         of_device=True, measure=_underused_value, louder=_underused_louder, cause=_underused_cause),
    Rule(name="gpu_busy_inefficient", level="notice", key=_SM, threshold=SM_LOW, clear=55.0,
         direction="below", of_device=True, side=_inefficient_side, cause=_inefficient_cause),
    Rule(name="bandwidth_bound", level="notice", key=_BW, threshold=_BANDWIDTH_HIGH, clear=55.0,
         of_device=True, side=_bandwidth_side, cause=_bandwidth_cause),
    Rule(name="gpu_memory", level="warning", key="perf_gpu/mem_used_pct", threshold=95.0, clear=93.0,
         measure=_memory_value, cause=_memory_cause),
    Rule(name="gpu_temperature", level="warning", key="perf_gpu/temp_c", threshold=85.0, clear=82.0,
         measure=_heat_value, side=_heat_side, cause=_heat_cause),
    Rule(name="throughput_drop", level="warning", key="perf/samples_per_s", threshold=80.0, clear=85.0,
         direction="below", title="throughput", unit="%", measure=_speed, side=_speed_side,
         cause=_speed_cause, inputs=("perf/step_ms",)),
)  # fmt: skip
"""In the order in which a window is judged by them."""
