"""What this machine can measure, what it cannot, and why."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shlex
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trackperf import environment
from trackperf.codec import plain
from trackperf.devices.gpu import GpuReadings
from trackperf.devices.host import HostReadings
from trackperf.metrics import CATALOGUE, HEADLINE
from trackperf.registry import sink_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackperf.devices.facts import DeviceFacts

__all__ = ["examine", "tensorboard_line", "tensorboard_program"]

_ANSWER_S: Final = 10.0
_LOOK_S: Final = 0.6
_PACKAGES: Final = ("torch", "tensorboard")
_NEEDS: Final = {
    "perf/tokens_per_s": "when counted: steps(loader, tokens=...)",
    "perf/samples_per_s": "yes, batch size inferred",
    "perf/data_pct": "yes: by CUDA events on a GPU, by the host's clock on a CPU",
}
"""How it is with a series, where it is not simply measured."""


def examine() -> dict[str, Any]:
    """
    Return what is here, as JSON can carry it.

    `machine` and `packages` by name, `sinks`, `host` readings, and `measured` and `absent`: each headline
    series with how it is measured, or why it is not. torch is not imported.
    """
    gpus, unread = _gpus()
    absent = {**environment.absent_reasons(), **{key: why for key, why in unread.items() if key in CATALOGUE}}
    program = tensorboard_program()
    return {
        "machine": environment.facts(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "tensorboard": shlex.join(program) if program else None,
        "sinks": [asdict(entry) for entry in sink_names()],
        "host": _host(),
        "gpus": gpus,
        "measured": {one.key: _NEEDS.get(one.key, "yes") for one in HEADLINE if one.key not in absent},
        "absent": absent,
    }


def tensorboard_program() -> list[str] | None:
    """Return the command that starts this environment's TensorBoard; None where it is not installed."""
    if _version("tensorboard") is None:
        return None
    beside = Path(sys.executable).parent / "tensorboard"
    found = shutil.which("tensorboard")
    if found is not None and (not beside.exists() or Path(found).resolve() == beside.resolve()):
        return ["tensorboard"]
    return [_short(beside)] if beside.exists() else [sys.executable, "-m", "tensorboard.main"]


def tensorboard_line(folder: Path) -> str:
    """Return the line that opens TensorBoard on a folder, as it can be pasted into this shell."""
    program: Sequence[str] = tensorboard_program() or ["tensorboard"]
    return shlex.join([*program, "--logdir", str(folder)])


def _short(path: Path) -> str:
    """Return a path as it is typed from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return each GPU that this process may use, and why series are absent; takes about two seconds."""
    readings = GpuReadings(answer_s=_ANSWER_S)
    readings.start()
    begin = time.perf_counter_ns()
    try:
        found = readings.describe()
        if found:
            # Some counters are differences between two moments.
            time.sleep(_LOOK_S)
            readings.read(begin, time.perf_counter_ns())
            found = readings.describe()
        return [plain(_fields(device)) for device in found], readings.absent()
    finally:
        readings.close()


def _fields(device: DeviceFacts) -> dict[str, Any]:
    """Return a device's facts by name, its counters by series."""
    fields = {one.name: getattr(device, one.name) for one in dataclasses.fields(device)}
    fields["state"] = asdict(device.state)
    fields["counters"] = {key: asdict(counter) for key, counter in device.counters.items()}
    return fields


def _host() -> dict[str, float]:
    """Return host readings: two, as CPU use is a difference between them."""
    readings = HostReadings()
    readings.read()
    sum(range(200_000))
    return readings.read()
