"""Puts the simulated library in the place of the driver's: in this process, or for another one."""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
from typing import TYPE_CHECKING, Any, final

from nvml_sim.build import LIBRARY, library
from nvml_sim.scenario import device_word, rule_line

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from nvml_sim.scenario import Fault, Garbage, Scenario
    from nvml_sim.timeline import At

__all__ = ["CallLog", "Simulation", "environment"]

_PATCHED = ("nvmlLib", "_nvmlGetFunctionPointer_cache", "_nvmlLib_refcount", "CDLL")


@final
class Simulation:
    """
    The simulated library under the real `pynvml` of this process, on a virtual clock, while its block lasts.

    One at a time. What was initialised before is as it was afterwards.
    """

    def __init__(self, scenario: Scenario, *, virtual: bool = True) -> None:
        """
        Args:
            scenario: the machine.

            virtual: whether time only passes when it is told to; real time otherwise.
        """
        self.scenario = scenario
        self._virtual = virtual
        self._pynvml: Any = importlib.import_module("pynvml")
        self._before: dict[str, Any] = {}
        self._library: ctypes.CDLL | None = None

    def __enter__(self) -> Simulation:
        if getattr(self._pynvml, "_simulated", False):
            raise RuntimeError("a simulation is in place already; one at a time")
        values: dict[str, Any] = {
            "nvmlLib": None,
            "_nvmlGetFunctionPointer_cache": {},
            "_nvmlLib_refcount": 0,
        }
        if self.scenario.installed:
            self._library = values["nvmlLib"] = _controlled(library(self.scenario.missing))
            problem = self._library.sim_load(self.scenario.text(virtual=self._virtual).encode())
            if problem is not None:
                raise ValueError(problem.decode())
        else:
            values["CDLL"] = _not_found
        self._before = {name: getattr(self._pynvml, name) for name in _PATCHED}
        self._put({**values, "_simulated": True})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put({**self._before, "_simulated": False})
        if self._library is not None:
            self._library.sim_unload()

    def _put(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self._pynvml, name, value)

    @property
    def _lib(self) -> ctypes.CDLL:
        if self._library is None:
            raise RuntimeError("this machine has no library to be driven, or the block has not begun")
        return self._library

    @property
    def now_s(self) -> float:
        """Seconds since the start of the scenario."""
        return int(self._lib.sim_time()) / 1e9

    def set_time(self, s: float) -> None:
        """Set the virtual clock."""
        if not self._virtual:
            raise RuntimeError("this simulation runs in real time; its clock cannot be set")
        self._lib.sim_set_time(round(s * 1e9))

    def advance(self, s: float) -> None:
        """Let time pass on the virtual clock."""
        if not self._virtual:
            raise RuntimeError("this simulation runs in real time; its clock cannot be set")
        self._lib.sim_set_time(int(self._lib.sim_time()) + round(s * 1e9))

    def append(self, point: At, *, gpu: int = 0, mig: int | None = None) -> None:
        """Say what a device does from a moment on that is not before its last point."""
        self._line(point.line(device_word(gpu, mig)))

    def inject(self, *rules: Fault | Garbage) -> None:
        """Let something go wrong; of several that hold at a moment the newest counts."""
        for rule in rules:
            self._line(rule_line(rule))

    def slow_down(self, function: str, us: int) -> None:
        """Let a function take its time."""
        self._line(f"lat {function} {us}")

    def clear(self) -> None:
        """Let nothing be wrong or slow any more."""
        self._lib.sim_clear_rules()

    def calls(self, function: str) -> int:
        """Return how often a function was called in this process, failed calls included."""
        count = int(self._lib.sim_calls(function.encode()))
        if count < 0:
            raise ValueError(f"the simulated library has no function {function!r}")
        return count

    def reset_calls(self) -> None:
        """Count calls from 0."""
        self._lib.sim_reset_calls()

    @property
    def gpm_samples(self) -> int:
        """How many GPM samples nobody has freed, of all that this process ever took from this library."""
        return int(self._lib.sim_gpm_samples())

    def _line(self, line: str) -> None:
        problem = self._lib.sim_line(line.encode())
        if problem is not None:
            raise ValueError(problem.decode())


def _not_found(name: str) -> ctypes.CDLL:
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")


def _controlled(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    for name in ("sim_load", "sim_line"):
        function = getattr(loaded, name)
        function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_char_p
    loaded.sim_set_time.argtypes = [ctypes.c_int64]
    loaded.sim_time.restype = ctypes.c_int64
    loaded.sim_calls.argtypes, loaded.sim_calls.restype = [ctypes.c_char_p], ctypes.c_int64
    return loaded


class CallLog:
    """What processes that used the library in a folder left in writing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self._path.read_text().splitlines()] if self._path.exists() else []

    @property
    def initialised(self) -> list[int]:
        """The process of every successful initialisation, in order."""
        return [int(words[1]) for words in self._lines() if words[0] == "init"]

    def calls(self, function: str) -> int:
        """Return how often a function was called by all processes that ended in the ordinary way."""
        return sum(int(words[3]) for words in self._lines() if words[0] == "calls" and words[2] == function)


def environment(scenario: Scenario, folder: Path) -> dict[str, str]:
    """
    Return the variables under which another process has the simulated library as its driver's, in real time.

    To be added to `os.environ`. What that process and its children did tells `CallLog(folder / "calls")`.

    Args:
        scenario: the machine; time starts when a process first initialises the library.

        folder: where the library and the scenario are put.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / LIBRARY
    if scenario.installed:
        shutil.copyfile(library(scenario.missing, named=True), place)
    else:
        place.write_bytes(b"")
    (folder / "scenario").write_text(scenario.text(virtual=False))
    path = os.environ.get("LD_LIBRARY_PATH")
    return {
        "LD_LIBRARY_PATH": f"{folder}:{path}" if path else str(folder),
        "NVMLSIM_SCENARIO": str(folder / "scenario"),
        "NVMLSIM_LOG": str(folder / "calls"),
    }
