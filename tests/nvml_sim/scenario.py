"""Devices of a simulated machine, what their driver gets wrong, and the text that tells the library of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvml_sim.timeline import At

__all__ = [
    "Code",
    "Fault",
    "Garbage",
    "Gpu",
    "Latency",
    "Mig",
    "Process",
    "Scenario",
    "device_word",
    "rule_line",
]

GIB = 2**30
ALWAYS_S = 9e9


class Code(enum.IntEnum):
    """What a call of the driver returns when it fails."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    NO_DATA = 21
    ARGUMENT_VERSION_MISMATCH = 25
    NOT_READY = 27
    UNKNOWN = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that has memory on a device."""

    pid: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """An instance of a divided GPU; slots that have none are holes."""

    slot: int
    uuid: str
    name: str = "NVIDIA H200 MIG 1g.18gb"
    instance_id: int = 7
    compute_instance_id: int = 0
    memory_bytes: int = 16 * GIB
    reserved_bytes: int = 0
    timeline: tuple[At, ...] = ()
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device; what is not told is that of an H200."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
    bus: str = "00000000:18:00.0"

    index: int | None = None
    """The driver's own index; the place in the scenario unless told."""

    memory_bytes: int = 143_771 * 2**20
    reserved_bytes: int = 0
    bus_width_bits: int = 6144
    max_sm_clock_mhz: int = 1980
    max_mem_clock_mhz: int = 3201
    architecture: int = 9
    capability: tuple[int, int] = (9, 0)
    power_limit_w: int = 700
    slowdown_c: int = 87
    shutdown_c: int = 92
    gpm: bool = True

    mig_max: int = 7
    """How many instances there can be; 0 where a GPU cannot be divided."""

    mig_on: bool = False
    migs: tuple[Mig, ...] = ()

    mig_parent_util: bool = False
    """Whether the utilisation of a divided GPU can be read: that of all its tenants."""

    power_mean_s: float = 1.0
    """The time over which power is a mean; 0 for power at this instant."""

    energy_base_mj: float = 0.0
    """Energy used before the scenario began."""

    energy_scale: float = 1.0
    """What the energy counter makes of the true energy."""

    energy_reset_s: float | None = None
    """When the driver is loaded anew, and counts energy from 0."""

    timeline: tuple[At, ...] = ()
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A function that fails, on one device or on all, between two moments."""

    function: str
    """Name in the driver's library, with or without `_v2`; `*` for all that take a device."""

    code: Code

    part: int | None = None
    """Only this field, metric, clock or type of samples of the function."""

    gpu: int | None = None
    """Place of the GPU in the scenario; all devices unless told, also for calls that take none."""

    mig: int | None = None
    """Slot of the instance of that GPU; the GPU itself unless told."""

    start_s: float = 0.0
    end_s: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """A function that gives a wrong value, on one device or on all, between two moments."""

    function: str
    value: float
    part: int | None = None
    """As of a fault; of utilisation 0 is the GPU's and 1 is the memory's."""

    gpu: int | None = None
    mig: int | None = None
    start_s: float = 0.0
    end_s: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A function that takes its time, real time also under a virtual clock."""

    function: str
    us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A machine as its driver sees it."""

    gpus: tuple[Gpu, ...] = (Gpu(),)
    """In the order of CUDA, which may not be the driver's: see `Gpu.index`."""

    faults: tuple[Fault, ...] = ()
    garbage: tuple[Garbage, ...] = ()
    latencies: tuple[Latency, ...] = ()

    missing: tuple[str, ...] = ()
    """Functions that the library does not have, by pattern: `nvmlGpm*`."""

    installed: bool = True
    """Whether there is a library at all."""

    driver: str = "580.95.05"
    cuda: int = 13000

    util_period_s: float = 1 / 6
    """The time over which utilisation is a mean."""

    sample_hz: int = 6
    sample_buffer: int = 120

    sample_idle: bool = True
    """Whether samples of a period without any work are kept."""

    sample_ring: bool = False
    """Whether samples come in the order of their places in a ring buffer, not of time."""

    stamps: str = "boot"
    """What time stamps count from: `boot` or `epoch`."""

    stamp_base_s: float | None = None
    """What a stamp says at the start of the scenario; that clock's own time unless told."""

    gpm_refresh_s: float = 0.1
    energy_refresh_s: float = 0.02

    def with_faults(self, *faults: Fault) -> Scenario:
        """Return a scenario in which these go wrong as well."""
        return replace(self, faults=self.faults + faults)

    def with_garbage(self, *garbage: Garbage) -> Scenario:
        """Return a scenario in which these values are wrong as well."""
        return replace(self, garbage=self.garbage + garbage)

    def with_latency(self, function: str, us: int) -> Scenario:
        """Return a scenario in which a function takes its time."""
        return replace(self, latencies=(*self.latencies, Latency(function=function, us=us)))

    def text(self, *, virtual: bool) -> str:
        """
        Return what the library reads.

        Args:
            virtual: whether time only passes when it is set.
        """
        return "\n".join([self._knobs(virtual), *self._devices(), *self._troubles()]) + "\n"

    def _knobs(self, virtual: bool) -> str:
        if self.stamps not in {"boot", "epoch"}:
            raise ValueError(f"stamps={self.stamps!r}: not 'boot' or 'epoch'")
        base = "" if self.stamp_base_s is None else f" stamp_base={self.stamp_base_s!r}"
        return (
            f"set virtual={virtual:d} driver={_word(self.driver)} cuda={self.cuda} sample_hz={self.sample_hz}"
            f" sample_buffer={self.sample_buffer} sample_idle={self.sample_idle:d}"
            f" sample_ring={self.sample_ring:d} stamps_epoch={self.stamps == 'epoch':d}"
            f" util={self.util_period_s!r} gpm={self.gpm_refresh_s!r} energy={self.energy_refresh_s!r}{base}"
        )

    def _devices(self) -> Iterator[str]:
        for place, gpu in enumerate(self.gpus):
            yield _gpu_line(place, gpu)
            yield from _contents(str(place), gpu)
            for mig in gpu.migs:
                yield (
                    f"mig {place} {mig.slot} name={_word(mig.name)} uuid={mig.uuid} memory={mig.memory_bytes}"
                    f" reserved={mig.reserved_bytes} instance={mig.instance_id}"
                    f" compute_instance={mig.compute_instance_id}"
                )
                yield from _contents(f"{place}/{mig.slot}", mig)

    def _troubles(self) -> Iterator[str]:
        yield from (rule_line(fault) for fault in self.faults)
        yield from (rule_line(garbage) for garbage in self.garbage)
        yield from (f"lat {latency.function} {latency.us}" for latency in self.latencies)


def _gpu_line(place: int, gpu: Gpu) -> str:
    reset = "" if gpu.energy_reset_s is None else f" energy_reset={gpu.energy_reset_s!r}"
    index = place if gpu.index is None else gpu.index
    return (
        f"gpu {place} index={index} name={_word(gpu.name)} uuid={gpu.uuid} bus={gpu.bus}"
        f" memory={gpu.memory_bytes} reserved={gpu.reserved_bytes} bus_width={gpu.bus_width_bits}"
        f" max_sm={gpu.max_sm_clock_mhz} max_mem={gpu.max_mem_clock_mhz} arch={gpu.architecture}"
        f" major={gpu.capability[0]} minor={gpu.capability[1]} power_limit={gpu.power_limit_w}"
        f" slowdown={gpu.slowdown_c} shutdown={gpu.shutdown_c} gpm={gpu.gpm:d} mig={gpu.mig_on:d}"
        f" mig_max={gpu.mig_max} mig_parent_util={gpu.mig_parent_util:d} power_mean={gpu.power_mean_s!r}"
        f" energy_base={gpu.energy_base_mj!r} energy_scale={gpu.energy_scale!r}{reset}"
    )


def _contents(device: str, of: Gpu | Mig) -> Iterator[str]:
    yield from (point.line(device) for point in sorted(of.timeline, key=lambda point: point.s))
    yield from (f"proc {device} {process.pid} {process.memory_bytes}" for process in of.processes)


def rule_line(rule: Fault | Garbage) -> str:
    """Return the line of a scenario that says what goes wrong."""
    function = rule.function if rule.part is None else f"{rule.function}:{rule.part}"
    if rule.gpu is None and rule.mig is not None:
        raise ValueError(f"mig={rule.mig} without gpu=: an instance is that of a GPU")
    device = "*" if rule.gpu is None else device_word(rule.gpu, rule.mig)
    verb, what = ("err", str(int(rule.code))) if isinstance(rule, Fault) else ("value", repr(rule.value))
    return f"{verb} {function} {device} {what} {rule.start_s!r} {min(rule.end_s, ALWAYS_S)!r}"


def device_word(gpu: int, mig: int | None) -> str:
    """Return how lines of a scenario call a device."""
    return f"{gpu}" if mig is None else f"{gpu}/{mig}"


def _word(text: str) -> str:
    return text.replace(" ", "%20")
