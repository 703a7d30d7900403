"""What to change about the device, the start of a loader, or a drop in speed, from a window's values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trackperf.shipped import SM_LOW, worst_device
from trackperf.text import duration, number, percent

if TYPE_CHECKING:
    from trackperf.loaders import LoaderFacts
    from trackperf.rule import Values
    from trackperf.steady import Steady

__all__ = [
    "advise_drop",
    "advise_heat",
    "advise_kernels",
    "advise_memory",
    "advise_startup",
    "advise_transfer",
]

_ROOMY: Final = 60.0
"""Device memory in per cent below which a larger batch is sure to find room."""

_FULL: Final = 85.0
_OTHERS_GIB: Final = 2.0
"""What the driver's context and its libraries take at most, about; more beside torch belongs to others."""

_FRAGMENTED: Final = 0.1
_CHANGED: Final = 0.1
_POINTS: Final = 5.0
"""Points of a share that count as a change, where a tenth of it is less."""


def advise_kernels(values: Values) -> str:
    """Return what to do about small kernels, or about a host that feeds the device too slowly."""
    parts = []
    batch, used = values.get("perf_step/samples"), values.get("perf_gpu/mem_used_pct")
    if used is None or used < _FULL:
        now = "" if batch is None else f" (now {number(batch)} samples a step)"
        room = f", for which there is room: memory is {percent(used)} full" if used and used < _ROOMY else ""
        parts.append(f"a larger batch{now}{room}")
    parts += ["torch.compile(model)", 'CUDA graphs (torch.compile(model, mode="reduce-overhead"))']
    advice = f"Give the GPU more work at a time: {'; '.join(parts)}."
    active = values.get("perf_gpu/sm_active_pct")
    if active is not None and active >= SM_LOW:
        return (
            "Kernels are large enough, so look for where the host waits or works between them: .item(), "
            f".cpu(), print() of a tensor, logging every step, an optimizer without fused=True. {advice}"
        )
    return advice


def advise_transfer(values: Values) -> str:
    """Return what to do when device memory is the limit."""
    copies = ""
    if (h2d_ms := values.get("perf_data/h2d_ms")) and h2d_ms > 0.05 * values.get("perf/step_ms", 0.0):
        copies = f" Copies to the device take {duration(h2d_ms / 1e3)} a step: send smaller types."
    return (
        "Move less data, not fewer FLOPs: fuse element-wise operations (torch.compile), lower the precision "
        "where it is not low yet (torch.autocast with bfloat16 halves the bytes), and save copies "
        f"(.contiguous(), .clone(), changes of layout).{copies}"
    )


def advise_memory(values: Values) -> str:
    """Return what to do about a full device, from how torch's share of it is made up."""
    section = (worst_device(values, "mem_used_pct") or ("perf_gpu", 0.0))[0]
    used, reserved, peak = (
        values.get(f"{section}/{name}", values.get(f"perf_gpu/{name}"))
        for name in ("mem_used_gib", "torch_reserved_gib", "torch_peak_gib")
    )
    if not used or reserved is None:
        return (
            "Take a smaller batch with accumulation, checkpoint activations, or lower the precision, before "
            "an allocation fails."
        )
    if used - reserved > max(_OTHERS_GIB, _FRAGMENTED * used):
        return (
            f"Of {number(used)} GiB in use torch here holds {number(reserved)} GiB: the rest belongs to "
            "other processes (nvidia-smi names them) or other libraries."
        )
    if peak is not None and reserved - peak > _FRAGMENTED * reserved:
        return (
            f"torch has reserved {number(reserved)} GiB, but its tensors took {number(peak)} GiB at most: "
            "it is fragmented. Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        )
    taken = "" if peak is None else f" (tensors took {number(peak)} of {number(reserved)} GiB reserved)"
    return (
        f"It is truly full{taken}: take a smaller batch with accumulation, checkpoint activations, lower "
        "the precision, or shard the optimizer."
    )


def advise_heat(values: Values) -> str:
    """Return what to do about heat."""
    power, clock = values.get("perf_gpu/power_w"), values.get("perf_gpu/sm_clock_mhz")
    facts = [f"{number(power)} W"] if power is not None else []
    facts += [f"SM clock {number(clock)} MHz"] if clock is not None else []
    now = f" (now {', '.join(facts)})" if facts else ""
    return (
        f"See to its cooling: air flow, fans, neighbours in the rack. Until then a lower power limit{now}, "
        "`nvidia-smi -pl`, costs less speed than throttling does."
    )


def advise_startup(values: Values, loader: LoaderFacts | None) -> str:
    """Return what to do about passes that begin slowly."""
    if loader is None or not loader.is_dataloader:
        return "Keep the loader from one pass to the next instead of building it anew."
    if not loader.num_workers:
        return "Set num_workers=1 or more and persistent_workers=True: what opens a pass is then done once."
    if loader.persistent_workers is False:
        return (
            f"Set persistent_workers=True: now {loader.num_workers} workers start anew for each pass, and "
            "make their copy of the dataset."
        )
    first_ms = values.get("perf_data/first_batch_ms")
    taken = "" if first_ms is None else f" of {duration(first_ms / 1e3)}"
    return (
        f"The workers stay already, so the wait{taken} is that for their first batches: prepare less for "
        "each, or make passes longer (a sampler that goes round the data several times)."
    )


def advise_drop(values: Values, steady: Steady) -> str:
    """Return what else changed when the training became slower, against what is usual in the run."""
    found = []
    names = (
        ("perf/data_pct", "waiting for data", "%"),
        ("perf/gpu_util_pct", "GPU utilisation", "%"),
        ("perf_gpu/sm_clock_mhz", "SM clock", "MHz"),
        ("perf_gpu/thermal_throttle_pct", "thermal throttling", "%"),
        ("perf_host/cpu_pct", "CPU use", "%"),
        ("perf_data/h2d_ms", "copy to the device", "ms"),
        ("perf_step/samples", "samples a step", ""),
    )
    for key, title, unit in names:
        now, usual = values.get(key), steady.median(key)
        if now is None or usual is None:
            continue
        if abs(now - usual) > max(_CHANGED * abs(usual), _POINTS if unit == "%" else 0.0):
            found.append(f"{title} {number(now)} {unit}".rstrip() + f" (usually {number(usual)})")
    if not found:
        return "No other number changed with it: look for other processes here, or other work in the step."
    return f"What changed with it: {', '.join(found)}."
