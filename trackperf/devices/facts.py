"""What there is to say of one GPU of the run, for `doctor` and for the run's metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from trackperf.devices.counters import CounterFacts, DriverError
from trackperf.devices.peaks import Bandwidth, peak_bandwidth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackperf.devices.mapping import Found, Match, TorchDevice
    from trackperf.devices.nvml import Nvml

__all__ = ["DeviceFacts", "Identity", "gpu_facts", "identify"]

_EMPTY: Final[Mapping[str, CounterFacts]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One GPU of the run."""

    index: int
    """Its place in the run, from 0: the number in `perf_gpu0/`."""

    name: str
    """As the driver tells it; what it was asked for by, where the driver does not."""

    uuid: str = ""
    match: Match | None = None
    """How it was found; None when it was not."""

    state: CounterFacts
    """How it is with the device as a whole."""

    compute_capability: str = ""
    driver: str = ""
    memory_gib: float | None = None
    peak_bandwidth_gb_s: float | None = None

    peak_source: str = ""
    """Where the peak is from, or why there is none."""

    datasheet_gb_s: float | None = None
    """Bandwidth by the maker, for comparison."""

    peak_remark: str = ""
    """What is odd about the peak; empty when nothing is."""

    gpm: bool = False
    """Whether activity and bandwidth counters answer."""

    mig: bool = False
    """Whether it is a slice of a GPU, or a GPU in slices."""

    counters: Mapping[str, CounterFacts] = field(default_factory=lambda: _EMPTY)
    """How it is with each counter, by the series that it makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What never changes about a device."""

    name: str
    compute_capability: str
    memory_gib: float | None
    peak: Bandwidth


def identify(nvml: Nvml, found: Found, torch: TorchDevice | None) -> Identity:
    """Return what the driver, or torch in its place, tells of a device; never raises."""
    name = _ask(lambda: nvml.name(found.handle)) or (torch.name if torch else "") or found.uuid
    memory = _ask(lambda: nvml.memory(found.handle)[1])
    if memory is None and torch is not None:
        memory = torch.memory_bytes or None
    if found.is_slice or found.is_divided:
        peak = Bandwidth(gb_s=None, source="MIG: the share of a slice is not told")
    else:
        clock = _ask(lambda: nvml.max_memory_clock_mhz(found.handle))
        bits = _ask(lambda: nvml.bus_width_bits(found.handle))
        mine = (torch.max_memory_clock_mhz, torch.bus_width_bits) if torch else (None, None)
        peak = peak_bandwidth(name, driver=(clock, bits), torch=mine)
    return Identity(
        name=name,
        compute_capability=_ask(lambda: nvml.capability(found.handle)) or "",
        memory_gib=None if memory is None else memory / 2**30,
        peak=peak,
    )


def _ask(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except DriverError:
        return None


def gpu_facts(devices: Sequence[DeviceFacts]) -> dict[str, str | int | float | bool]:
    """Return what makes runs on these devices comparable, and how far their numbers reach, by name."""
    facts: dict[str, str | int | float | bool] = {}
    for device in devices:
        name = f"gpu{device.index}"
        facts[name] = device.name
        known = {
            "uuid": device.uuid,
            "match": device.match,
            "driver": device.driver,
            "compute_capability": device.compute_capability,
            "memory_gib": device.memory_gib,
            "peak_bandwidth_gb_s": device.peak_bandwidth_gb_s,
            "peak_source": device.peak_source,
        }
        facts |= {f"{name}_{key}": value for key, value in known.items() if value not in (None, "")}
    return facts
