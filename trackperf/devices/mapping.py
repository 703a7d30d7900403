"""Which GPUs are this run's, and which devices of the driver those are."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from trackperf.devices.counters import Code, DriverError
from trackperf.devices.visible import visible_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackperf.devices.nvml import Handle, Nvml

__all__ = [
    "Found",
    "Match",
    "TorchDevice",
    "allocator_bytes",
    "locate",
    "own_devices",
    "torch_devices",
    "why_none",
]

Match: TypeAlias = Literal["uuid", "mig", "pci", "index", "given"]
"""How a device was found: by UUID, by that of a MIG slice, by bus, by index; or as it was asked for."""

_MIB: Final = 1024 * 1024
_NOT_THERE: Final = (Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """A GPU as torch knows it."""

    index: int
    """torch's own index: `cuda:<index>`."""

    name: str = ""
    uuid: str = ""
    """Without a word in front; empty where torch does not tell."""

    bus: str = ""
    """Place on the PCI bus; empty where torch does not tell."""

    memory_bytes: int = 0
    max_memory_clock_mhz: float | None = None
    bus_width_bits: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A device of the driver's."""

    handle: Handle
    uuid: str
    match: Match
    is_slice: bool
    """Whether it is a MIG slice of a GPU."""

    is_divided: bool
    """Whether it is a GPU that is divided into slices, of which one may be the run's."""


def own_devices() -> list[TorchDevice] | None:
    """
    Return the GPUs on which this process has memory; None where torch is not imported.

    Before any has memory it is the one GPU there is, or none. torch's current device would be no help: it is
    that of the thread which asks. CUDA is never initialised.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    devices = torch_devices()
    try:
        used = [device for device in devices if torch.cuda.memory_reserved(device.index) > 0]
    except Exception:  # noqa: BLE001 - an allocator of the user's own may not count
        used = [device for device in devices if device.index == torch.cuda.current_device()]
    return used or (devices if len(devices) == 1 else [])


def torch_devices() -> list[TorchDevice]:
    """Return all GPUs that torch may use; none before CUDA is initialised, or of another maker."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized() or getattr(torch.version, "hip", None):
            return []
        count = int(torch.cuda.device_count())
        return [_described(index, torch.cuda.get_device_properties(index)) for index in range(count)]
    except Exception:  # noqa: BLE001 - a half-imported or foreign torch has no device of the driver's
        return []


def why_none(environ: Mapping[str, str] = os.environ) -> str:
    """Return why this process has no GPU."""
    torch = sys.modules.get("torch")
    if torch is None:
        hidden = environ.get("CUDA_VISIBLE_DEVICES")
        told = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden!r})"
        return f"no NVIDIA GPU is visible to this process{told}"
    if getattr(getattr(torch, "version", None), "hip", None):
        return "torch is built for ROCm, and GPU counters are read from NVIDIA's driver"
    return "torch does not use a CUDA device in this process"


def allocator_bytes(index: int) -> tuple[float, float] | None:
    """
    Return bytes that torch's allocator holds of a GPU, and the most that tensors have taken.

    The second is the user's own `max_memory_allocated`: since the start, or since the user last reset it.
    None where torch cannot tell.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        stats = torch.cuda.memory_stats_as_nested_dict(index)
        held, taken = stats["reserved_bytes"]["all"], stats["allocated_bytes"]["all"]
        return float(held["current"]), float(taken["peak"])
    except Exception:  # noqa: BLE001 - an allocator of the user's own may not count
        return None


def locate(nvml: Nvml, target: TorchDevice | str | int, *, given: bool = False) -> Found:
    """
    Return the driver's device for one of torch's, a UUID, or an index of the driver's.

    Args:
        nvml: the session.

        target: what to look for.

        given: whether the user has named it.

    Raises:
        DriverError: there is none, or the driver does not say.
    """
    if isinstance(target, int):
        return _found(nvml, nvml.by_index(target), "given" if given else "index")
    if isinstance(target, str):
        match: Match = "given" if given else "mig" if target.startswith("MIG-") else "uuid"
        return _found(nvml, nvml.by_uuid(target), match)
    if target.uuid:
        handle = _try(lambda: nvml.by_uuid(f"GPU-{target.uuid}"))
        if handle is not None:
            return _found(nvml, handle, "uuid")
        handle = _try(lambda: nvml.by_uuid(f"MIG-{target.uuid}"))
        if handle is not None:
            return _found(nvml, handle, "mig")
    if target.bus:
        handle = _try(lambda: nvml.by_bus(target.bus))
        if handle is not None and _alike(nvml, handle, target):
            return _found(nvml, handle, "pci")
    return _by_index(nvml, target)


def _by_index(nvml: Nvml, target: TorchDevice) -> Found:
    """Return the device at torch's index among the visible ones, if it is one of that kind."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = visible_devices(
        value, nvml.count(), lambda index: _try(lambda: nvml.uuid(nvml.by_index(index)))
    )
    if target.index < len(visible):
        place = visible[target.index]
        handle = nvml.by_uuid(place) if isinstance(place, str) else nvml.by_index(place)
        if _alike(nvml, handle, target):
            return _found(nvml, handle, "index")
    raise DriverError(Code.NOT_FOUND, f"no device of the driver's is cuda:{target.index}", "locate")


def _found(nvml: Nvml, handle: Handle, match: Match) -> Found:
    is_slice = nvml.is_slice(handle)
    return Found(
        handle=handle,
        uuid=nvml.uuid(handle),
        match=match,
        is_slice=is_slice,
        is_divided=not is_slice and nvml.is_divided(handle),
    )


def _alike(nvml: Nvml, handle: Handle, target: TorchDevice) -> bool:
    """Return whether name and memory are those of torch's device, as far as either is known."""
    name = _try(lambda: nvml.name(handle))
    if target.name and name and target.name != name and not nvml.is_divided(handle):
        return False
    memory = _try(lambda: nvml.memory(handle)[1])
    if not memory or not target.memory_bytes or nvml.is_divided(handle):
        return True
    return abs(float(memory) - target.memory_bytes) <= max(0.1 * float(memory), 512.0 * _MIB)


def _try(ask: Callable[[], Any]) -> Any:
    """Return what there is; None where there is no such thing. Other failures pass."""
    try:
        return ask()
    except DriverError as error:
        if error.code not in _NOT_THERE:
            raise
        return None


def _described(index: int, properties: Any) -> TorchDevice:
    places: list[Any] = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    bus = "" if None in places else "{:08X}:{:02X}:{:02X}.0".format(*places)
    clock_khz = getattr(properties, "memory_clock_rate", None)
    return TorchDevice(
        index=index,
        name=str(getattr(properties, "name", "")),
        uuid=str(getattr(properties, "uuid", "")).removeprefix("GPU-").removeprefix("MIG-"),
        bus=bus,
        memory_bytes=int(getattr(properties, "total_memory", 0)),
        max_memory_clock_mhz=clock_khz / 1000 if clock_khz else None,
        bus_width_bits=getattr(properties, "memory_bus_width", None) or None,
    )
