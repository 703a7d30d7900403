"""torch's devices, the process's visible ones, and the driver's."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_parts import Readings, as_torch, stamped
from nvml_sim import Code, Fault, presets

from trackperf.devices import mapping
from trackperf.devices.counters import DriverError
from trackperf.devices.nvml import Nvml
from trackperf.devices.visible import visible_devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvml_sim import Scenario
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]
pytest.importorskip("pynvml")

GIB = 2**30
UUIDS = [f"GPU-{letter * 8}-0000" for letter in ("a", "b", "c", "ab")]


class FakeCuda:
    """What trackperf asks of `torch.cuda`, on a machine whose driver is simulated."""

    def __init__(self, scenario: Scenario, reserved: list[int], *, initialised: bool = True) -> None:
        self._gpus = scenario.gpus
        self.reserved = reserved
        self._initialised = initialised

    def is_initialized(self) -> bool:
        """Return whether the process has a CUDA context."""
        return self._initialised

    def device_count(self) -> int:
        """Return the number of devices, and break where this would initialise CUDA."""
        assert self._initialised
        return len(self._gpus)

    def get_device_properties(self, index: int) -> Any:
        """Return a device's properties, named as torch names them."""
        assert self._initialised
        gpu = self._gpus[index]
        domain, bus, rest = gpu.bus.split(":")
        return SimpleNamespace(
            name=gpu.name, uuid=gpu.uuid.removeprefix("GPU-"), total_memory=gpu.memory_bytes - 500 * 2**20,
            pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16), pci_device_id=int(rest[:2], 16),
            memory_clock_rate=3_201_000, memory_bus_width=6144,
        )  # fmt: skip

    def memory_reserved(self, index: int) -> int:
        """Return what the allocator holds."""
        return self.reserved[index]

    def current_device(self) -> int:
        """Return the device of this thread."""
        return 0

    def memory_stats_as_nested_dict(self, index: int) -> Any:
        """Return the allocator's statistics."""
        return {
            "reserved_bytes": {"all": {"current": self.reserved[index], "peak": 99}},
            "allocated_bytes": {"all": {"current": 1, "peak": self.reserved[index] // 2}},
        }


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return what puts another torch in place."""

    def put(cuda: Any, hip: str | None = None) -> None:
        monkeypatch.setitem(
            sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))
        )

    return put  # type: ignore[return-value]


def test_own_devices_have_memory(torch: Any) -> None:
    """The run's devices are those on which the process holds memory: one, or several."""
    cuda = FakeCuda(presets.four_gpus(), [0, 0, GIB, 0])
    torch(cuda)
    assert [device.index for device in mapping.own_devices() or ()] == [2]
    cuda.reserved[0] = GIB
    assert [device.index for device in mapping.own_devices() or ()] == [0, 2]


def test_no_memory_yet(torch: Any) -> None:
    """Before any device has memory, the only one there is the run's; of several none is."""
    torch(FakeCuda(presets.h200(), [0]))
    assert [device.index for device in mapping.own_devices() or ()] == [0]
    torch(FakeCuda(presets.two_gpus(), [0, 0]))
    assert mapping.own_devices() == []


def test_allocator_that_does_not_count(torch: Any) -> None:
    """With an allocator of the user's own the current device is the run's."""
    cuda = FakeCuda(presets.two_gpus(), [])
    torch(cuda)
    assert [device.index for device in mapping.own_devices() or ()] == [0]
    assert mapping.allocator_bytes(0) is None


def test_cuda_is_not_initialised(torch: Any) -> None:
    """While torch has not initialised CUDA there is nothing to ask, and nothing is initialised."""
    torch(FakeCuda(presets.h200(), [0], initialised=False))
    assert mapping.own_devices() == []
    assert "does not use a CUDA device" in mapping.why_none()


def test_rocm(torch: Any) -> None:
    """A torch for ROCm has devices that are none of this driver's."""
    torch(FakeCuda(presets.h200(), [GIB]), hip="6.4")
    assert mapping.own_devices() == []
    assert "ROCm" in mapping.why_none()


def test_real_torch_without_cuda() -> None:
    """The torch that is installed here, without CUDA, has no devices and nothing to say."""
    real = pytest.importorskip("torch")
    if real.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")
    assert mapping.own_devices() == []
    assert mapping.allocator_bytes(0) is None


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the process's visible devices are told by its environment."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert mapping.own_devices() is None
    assert "'2'" in mapping.why_none({"CUDA_VISIBLE_DEVICES": "2"})
    assert mapping.why_none({}) == "no NVIDIA GPU is visible to this process"


def test_memory_by_torch(simulate: Simulate, torch: Any) -> None:
    """What torch's allocator holds, and the user's own peak, stand beside what the driver counts."""
    scenario = stamped(presets.two_gpus())
    torch(FakeCuda(scenario, [4 * GIB, 8 * GIB]))
    run = Readings(simulate, scenario, rank_devices=mapping.own_devices)
    values = run.window()
    assert [values[f"perf_gpu{index}/torch_reserved_gib"] for index in (0, 1)] == [4, 8]
    assert values["perf_gpu/torch_peak_gib"] == 3
    assert run.sampler.absent() == {}


def test_memory_by_torch_of_devices_asked_for(simulate: Simulate, torch: Any) -> None:
    """A device that the user named by the driver's index has torch's numbers of the same device."""
    scenario = stamped(presets.shuffled())
    torch(FakeCuda(scenario, [0, 2 * GIB, 0, 0]))
    run = Readings(simulate, scenario, devices=[0])
    assert run.window()["perf_gpu0/torch_reserved_gib"] == 2
    assert run.facts().uuid == scenario.gpus[1].uuid


def opened(simulate: Simulate, scenario: Scenario) -> Nvml:
    """Return a session on a simulated machine."""
    simulate(scenario)
    nvml = Nvml()
    nvml.open()
    return nvml


def test_by_uuid(simulate: Simulate) -> None:
    """The UUID decides, whatever index and bus say."""
    nvml = opened(simulate, presets.shuffled())
    gpus = presets.shuffled().gpus
    found = mapping.locate(nvml, as_torch(gpus[3], 0, bus=gpus[1].bus))
    assert (found.uuid, found.match) == (gpus[3].uuid, "uuid")


def test_by_uuid_of_a_slice(simulate: Simulate) -> None:
    """A UUID that is a slice's finds the slice."""
    nvml = opened(simulate, presets.divided())
    torch = as_torch(presets.H200, uuid=presets.MIG_UUID.removeprefix("MIG-"))
    found = mapping.locate(nvml, torch)
    assert (found.uuid, found.match, found.is_slice) == (presets.MIG_UUID, "mig", True)


def test_by_bus(simulate: Simulate) -> None:
    """Where torch tells no UUID, the place on the bus decides."""
    nvml = opened(simulate, presets.shuffled())
    gpu = presets.shuffled().gpus[2]
    found = mapping.locate(nvml, as_torch(gpu, 0, uuid=""))
    assert (found.uuid, found.match) == (gpu.uuid, "pci")


def test_by_index(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch tells neither, the index among the visible devices is all there is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    nvml = opened(simulate, presets.four_gpus())
    gpus = presets.four_gpus().gpus
    found = mapping.locate(nvml, as_torch(gpus[1], 1, uuid="", bus=""))
    assert (found.uuid, found.match) == (gpus[1].uuid, "index")


@pytest.mark.parametrize("changes", [{"name": "NVIDIA A100-SXM4-80GB"}, {"memory_bytes": 40 * GIB}])
def test_index_of_another_kind(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """A device of another name or size is not taken for torch's, only because it has its index."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = opened(simulate, presets.h200())
    with pytest.raises(DriverError, match="cuda:0"):
        mapping.locate(nvml, as_torch(presets.H200, uuid="", bus="", **changes))


def test_no_permission_is_not_another_device(simulate: Simulate) -> None:
    """A device that may not be had by UUID is not looked for elsewhere."""
    fault = Fault(function="nvmlDeviceGetHandleByUUID", code=Code.NO_PERMISSION)
    nvml = opened(simulate, presets.h200().with_faults(fault))
    with pytest.raises(DriverError, match="Permission"):
        mapping.locate(nvml, as_torch(presets.H200))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("1,0", [1, 0]),
        (" 2 , 3 ", [2, 3]),
        ("1gpu2,2ampere", [1, 2]),
        ("+1", [1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", [0]),
        ("0,4,1", [0]),
        ("2,2", []),
        ("0,,1", [0]),
        ("GPU-b", [1]),
        ("GPU-c,GPU-b", [2, 1]),
        ("GPU-aaaaaaaa-0000", [0]),
        ("GPU-a", []),
        ("GPU-c,0", [2]),
        ("GPU-c,GPU-cc", []),
        ("GPU-x", []),
        ("MIG-1,MIG-2", ["MIG-1", "MIG-2"]),
        ("MIG-1,MIG-1", []),
        ("MIG-1,0", ["MIG-1"]),
    ],
)
def test_visible(value: str | None, expected: list[int | str]) -> None:
    """Order is kept, the first bad entry ends the list, and a repeated one voids it."""
    assert visible_devices(value, 4, lambda index: UUIDS[index]) == expected


def test_visible_where_a_uuid_is_not_told() -> None:
    """A device whose UUID the driver does not tell cannot be meant by one."""
    assert visible_devices("GPU-b", 4, lambda index: None if index == 1 else UUIDS[index]) == []


def test_bus_of_old_torch() -> None:
    """Properties without bus, UUID and clocks make a device known by its index alone."""
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=1)
    device = mapping._described(3, properties)
    assert (device.uuid, device.bus, device.bus_width_bits) == ("", "", None)
    assert replace(device, index=0).max_memory_clock_mhz is None
