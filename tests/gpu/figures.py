"""Figures of a real machine, in a file that names it."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any, Final

__all__ = ["FILE", "VARIABLE", "Figures", "machine"]

VARIABLE: Final = "TRACKPERF_GPU_FIGURES"
"""Names the file, where it is not `FILE`."""

FILE: Final = Path("build/gpu-figures.json")


class Figures:
    """Collects what was measured, beside what it must be."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, name: str, value: float | str, unit: str = "", must: str = "") -> None:
        """
        Take a figure.

        Args:
            name: what it is.

            value: what came out; words where there is no number.

            unit: of the value.

            must: what it has to be, in words or as a number.
        """
        told = float(f"{value:.6g}") if isinstance(value, float) else value
        self._rows.append({"name": name, "value": told, "unit": unit, "must": must})

    def write(self, facts: dict[str, str], path: Path | None = None) -> Path | None:
        """
        Write what there is, if anything is, and return where.

        Args:
            facts: the machine.

            path: where to; by the variable, or the usual file, when not given.
        """
        if not self._rows:
            return None
        place = path or Path(os.environ.get(VARIABLE) or FILE)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"machine": facts, "figures": self._rows}, indent=2, allow_nan=False)
        place.write_text(text + "\n", encoding="utf-8")
        return place


def machine(torch: Any) -> dict[str, str]:
    """Return what figures depend on: the GPU and the versions; never a host's name."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": str(properties.name),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_gib": f"{properties.total_memory / 2**30:.1f}",
        "gpus": str(torch.cuda.device_count()),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "system": platform.system(),
    }
