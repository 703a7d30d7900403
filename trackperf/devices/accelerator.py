"""Whether the training runs on a device that works through a queue of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from trackperf.timing.device import DeviceTimeline

if TYPE_CHECKING:
    from trackperf.timing.marks import Marks

__all__ = ["accelerator_in_use", "device_timeline"]


def accelerator_in_use() -> str | None:
    """
    Return `cuda`, `xpu` or `mps` once the process uses it, else None.

    Asks torch only where it is imported, and initialises nothing.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        if torch.cuda.is_initialized():
            return "cuda"
        xpu = getattr(torch, "xpu", None)
        if xpu is not None and xpu.is_initialized():
            return "xpu"
        mps = getattr(torch, "mps", None)
        if mps is not None and torch.backends.mps.is_available() and mps.current_allocated_memory() > 0:
            return "mps"
    except Exception:  # noqa: BLE001 - a half-imported or foreign torch is none that trains
        return None
    return None


def device_timeline(marks: Marks) -> DeviceTimeline | None:
    """
    Return a timeline of the device that the process uses, None where there is none with events to time.

    NVIDIA and AMD devices go by the name `cuda` in torch. The events of `mps` may wait when they are read,
    and trackperf never waits.
    """
    kind = accelerator_in_use()
    torch = sys.modules.get("torch")
    if torch is None or kind not in ("cuda", "xpu"):
        return None
    if kind == "cuda":
        return DeviceTimeline(
            marks,
            new_event=lambda: torch.cuda.Event(enable_timing=True),
            capturing=torch.cuda.is_current_stream_capturing,
            device=torch.cuda.current_device,
        )
    return DeviceTimeline(
        marks,
        new_event=lambda: torch.Event(device="xpu", enable_timing=True),
        capturing=lambda: False,
        device=torch.xpu.current_device,
    )
