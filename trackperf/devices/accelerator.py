"""Whether the training runs on a device that works through a queue of its own."""

from __future__ import annotations

import sys

__all__ = ["accelerator_in_use"]


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
