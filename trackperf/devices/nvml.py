"""
NVIDIA's management library, asked for numbers: the one module that imports `pynvml`.

Every failure leaves here as a `DriverError` with the driver's own code and words, whatever the version of
`pynvml` makes of it. Where the driver has a newer and an older function for the same number, the newer one
is asked first, and not again once the driver has said that it does not have it.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trackperf.devices.counters import Code, DriverError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Handle", "Nvml"]

Handle: TypeAlias = Any
"""A device as the driver's library knows it; holds until the library is shut down."""

_BUFFER_GPU: Final = 1
_BUFFER_MEMORY: Final = 2
_MAX_CLOCK_MEMORY: Final = 2
_THERMAL_FIELDS: Final = (269, 270)
_GPM_VERSION: Final = 1
_KINDS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal")
_OLDER: Final = (Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH)
_NOTHING_NEW: Final = (Code.NOT_FOUND, Code.NO_DATA)

_import_lock = threading.Lock()


class Nvml:
    """
    A session with the driver, of one process and one thread.

    `open` comes first and may be tried again. Nothing is imported or loaded before.
    """

    def __init__(self) -> None:
        self._pynvml: Any = None
        self._without: set[str] = set()
        self._request: Any = None

    def open(self) -> None:
        """Import `pynvml` and initialise the driver's library."""
        if self._pynvml is None:
            self._pynvml = _imported()
        self._call("nvmlInit")

    def close(self) -> None:
        """Shut the library down: once for each `open`."""
        self._call("nvmlShutdown")

    def driver_version(self) -> str:
        """Return the driver's version, such as `580.95.05`."""
        return _text(self._call("nvmlSystemGetDriverVersion"))

    def count(self) -> int:
        """Return the number of devices."""
        return int(self._call("nvmlDeviceGetCount"))

    def by_index(self, index: int) -> Handle:
        """Return the device with an index of the driver's."""
        return self._call("nvmlDeviceGetHandleByIndex", index)

    def by_uuid(self, uuid: str) -> Handle:
        """Return the GPU, or the slice of a GPU, with exactly this UUID."""
        # Older versions take bytes only, and every version passes them on as they are.
        return self._call("nvmlDeviceGetHandleByUUID", uuid.encode())

    def by_bus(self, bus: str) -> Handle:
        """Return the GPU at a place on the PCI bus, such as `00000000:18:00.0`."""
        return self._call("nvmlDeviceGetHandleByPciBusId", bus.encode())

    def name(self, handle: Handle) -> str:
        """Return a device's name."""
        return _text(self._call("nvmlDeviceGetName", handle))

    def uuid(self, handle: Handle) -> str:
        """Return a device's UUID, with `GPU-` or `MIG-` in front."""
        return _text(self._call("nvmlDeviceGetUUID", handle))

    def capability(self, handle: Handle) -> str:
        """Return a GPU's compute capability, such as `9.0`."""
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability", handle)
        return f"{int(major)}.{int(minor)}"

    def is_slice(self, handle: Handle) -> bool:
        """Return whether a device is a MIG slice of a GPU."""
        try:
            return bool(self._call("nvmlDeviceIsMigDeviceHandle", handle))
        except DriverError:
            return False

    def is_divided(self, handle: Handle) -> bool:
        """Return whether a GPU is divided into MIG slices."""
        try:
            return bool(self._call("nvmlDeviceGetMigMode", handle)[0])
        except DriverError:
            return False

    def max_memory_clock_mhz(self, handle: Handle) -> int:
        """Return the highest clock of a GPU's memory."""
        return int(self._call("nvmlDeviceGetMaxClockInfo", handle, _MAX_CLOCK_MEMORY))

    def bus_width_bits(self, handle: Handle) -> int:
        """Return the width of a GPU's memory bus."""
        return int(self._call("nvmlDeviceGetMemoryBusWidth", handle))

    def rates(self, handle: Handle) -> tuple[float, float]:
        """Return the shares of the driver's last period in which a kernel ran, and memory was used; in %."""
        rates = self._call("nvmlDeviceGetUtilizationRates", handle)
        return float(rates.gpu), float(rates.memory)

    def samples(self, handle: Handle, memory: bool, after_us: int) -> list[tuple[int, float]]:
        """
        Return (stamp in us, %) of what the driver's own buffer holds; empty when nothing is newer.

        Args:
            handle: the device.

            memory: the share of time in which memory was used; in which a kernel ran, otherwise.

            after_us: stamp of the last sample seen; 0 for all there are.
        """
        kind = _BUFFER_MEMORY if memory else _BUFFER_GPU
        try:
            value_kind, samples = self._call("nvmlDeviceGetSamples", handle, kind, after_us)
        except DriverError as error:
            if error.code in _NOTHING_NEW:
                return []
            raise
        return [(int(sample.timeStamp), _value(value_kind, sample.sampleValue)) for sample in samples]

    def memory(self, handle: Handle) -> tuple[float, float]:
        """Return bytes in use on a device, by all processes but not by the driver itself, and its size."""
        version = getattr(self._pynvml, "nvmlMemory_v2", None)
        info = None
        if version is not None:
            info = self._newer("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", handle, version)
        if info is None:
            info = self._call("nvmlDeviceGetMemoryInfo", handle)
        return float(info.used), float(info.total)

    def temperature_c(self, handle: Handle) -> float:
        """Return a GPU's temperature."""
        found = self._newer("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperatureV", handle, 0)
        return float(self._call("nvmlDeviceGetTemperature", handle, 0) if found is None else found)

    def power_w(self, handle: Handle) -> float:
        """Return a GPU's power: on most a mean over a second, on some of this instant."""
        return float(self._call("nvmlDeviceGetPowerUsage", handle)) * 1e-3

    def energy_j(self, handle: Handle) -> float:
        """Return the energy that a GPU has used since its driver was loaded."""
        return float(self._call("nvmlDeviceGetTotalEnergyConsumption", handle)) * 1e-3

    def sm_clock_mhz(self, handle: Handle) -> float:
        """Return the clock of a GPU's multiprocessors."""
        return float(self._call("nvmlDeviceGetClockInfo", handle, 1))

    def mem_clock_mhz(self, handle: Handle) -> float:
        """Return the clock of a GPU's memory."""
        return float(self._call("nvmlDeviceGetClockInfo", handle, 2))

    def clock_reasons(self, handle: Handle) -> int:
        """Return bits that tell why a GPU's clocks are low now."""
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        found = self._newer(name, name, handle)
        return int(
            self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle) if found is None else found
        )

    def thermal_ns(self, handle: Handle) -> tuple[int, int]:
        """Return the time for which software, and hardware, has held a GPU's clocks down for heat."""
        fields = self._call("nvmlDeviceGetFieldValues", handle, list(_THERMAL_FIELDS))
        for field in fields:
            if field.nvmlReturn:
                raise self._error(int(field.nvmlReturn), "nvmlDeviceGetFieldValues")
        software, hardware = (int(_value(field.valueType, field.value)) for field in fields)
        return software, hardware

    def has_gpm(self, handle: Handle) -> bool:
        """Return whether a device has the counters that newer datacenter GPUs have."""
        return bool(self._call("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice)

    def gpm_alloc(self) -> Any:
        """Return room for a sample of those counters, to be given back with `gpm_free`."""
        return self._call("nvmlGpmSampleAlloc")

    def gpm_free(self, sample: Any) -> None:
        """Give a sample's room back."""
        self._call("nvmlGpmSampleFree", sample)

    def gpm_take(self, handle: Handle, sample: Any, *, is_slice: bool) -> None:
        """Take a sample of a device's counters."""
        try:
            self._call("nvmlGpmSampleGet", handle, sample)
        except DriverError as error:
            if not is_slice or error.code not in {Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED}:
                raise
            parent = self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
            instance = int(self._call("nvmlDeviceGetGpuInstanceId", handle))
            self._call("nvmlGpmMigSampleGet", parent, instance, sample)

    def gpm_metrics(self, first: Any, second: Any, ids: Sequence[int]) -> list[float | DriverError]:
        """Return metrics between two samples: each a value, possibly not a number, or why there is none."""
        request = self._request
        if request is None:
            request = self._request = self._pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = _GPM_VERSION, len(ids)
        request.sample1, request.sample2 = first, second
        for place, metric in enumerate(ids):
            request.metrics[place].metricId = metric
        self._call("nvmlGpmMetricsGet", request)
        found: list[float | DriverError] = []
        for place in range(len(ids)):
            metric = request.metrics[place]
            code = int(metric.nvmlReturn)
            found.append(self._error(code, "nvmlGpmMetricsGet") if code else float(metric.value))
        return found

    def _newer(self, symbol: str, function: str, *arguments: object) -> Any:
        """Return what the newer of two functions says; None when the driver does not have it."""
        if symbol in self._without:
            return None
        try:
            return self._call(function, *arguments)
        except DriverError as error:
            if error.code not in _OLDER:
                raise
            self._without.add(symbol)
            return None

    def _call(self, function: str, *arguments: object) -> Any:
        found = getattr(self._pynvml, function, None)
        if found is None:
            raise DriverError(Code.FUNCTION_NOT_FOUND, f"{function} is not known", function)
        try:
            return found(*arguments)
        except self._pynvml.NVMLError as error:
            raise self._error(int(error.value), function) from None
        except Exception as error:
            raise DriverError(Code.UNKNOWN, f"{type(error).__name__}: {error}", function) from error

    def _error(self, code: int, function: str) -> DriverError:
        try:
            text = _text(str(self._pynvml.NVMLError(code)))
        except Exception:  # noqa: BLE001 - old versions ask the library, which may not have the words
            text = f"error {code}"
        return DriverError(code, text, function)


def _imported() -> Any:
    # Here and not above: who has no GPU does not need it.
    with _import_lock:
        try:
            return importlib.import_module("pynvml")
        except Exception as error:
            raise DriverError(
                Code.LIBRARY_NOT_FOUND, f"pynvml cannot be imported ({error})", "pynvml"
            ) from error


def _text(value: str | bytes) -> str:
    """Return a name as text: old versions of `pynvml` give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _value(kind: int, union: Any) -> float:
    """Return the member of the driver's union that its type names."""
    name = _KINDS[kind] if 0 <= kind < len(_KINDS) else "ullVal"
    return float(getattr(union, name))
