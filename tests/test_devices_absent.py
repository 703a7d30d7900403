"""What cannot be read of a GPU, of some of them, or at all: absent with a reason, told once, never 0."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_parts import Readings, as_torch, messages, stamped
from nvml_sim import Code, Fault, Garbage, Scenario, presets

if TYPE_CHECKING:
    from nvml_sim.fixtures import Simulate

    from trackperf.devices.mapping import TorchDevice

pytest_plugins = ["nvml_sim.fixtures"]
pynvml: Any = pytest.importorskip("pynvml")

UTIL = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetSamples")


def without_util(code: Code, gpu: int | None = None) -> list[Fault]:
    """Return the failure of all that tells utilisation."""
    return [Fault(function=function, code=code, gpu=gpu) for function in UTIL]


@pytest.mark.parametrize("code", [Code.NOT_SUPPORTED, Code.UNKNOWN])
def test_wsl(simulate: Simulate, caplog: pytest.LogCaptureFixture, code: Code) -> None:
    """Where utilisation cannot be read it is absent, told once, and the rest is there in every window."""
    caplog.set_level(logging.INFO)
    run = Readings(simulate, stamped(presets.wsl(code)))
    windows = [run.window() for _ in range(20)]
    assert not any("util" in key or "mem_busy" in key for window in windows for key in window)
    assert all(window["perf_gpu/mem_used_gib"] == pytest.approx(12e9 / 2**30) for window in windows)
    assert len(messages(caplog, "util_pct", "GPU 0")) == 1
    absent = run.sampler.absent()
    assert {"perf/gpu_util_pct", "perf/mem_busy_pct", "perf_gpu/util_pct"} <= absent.keys()


@pytest.mark.parametrize("as_bytes", [False, True])
def test_one_gpu_lacks_what_the_other_has(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch, as_bytes: bool
) -> None:
    """Of two GPUs one reports 70 and 40 % in every window, the other is absent; names may be bytes."""
    assert not hasattr(pynvml, "nvml")
    busy = replace(presets.H200, timeline=(replace(presets.BUSY, util_pct=70.0),))
    other = replace(busy, uuid="GPU-bbbb", bus="00000000:28:00.0")
    run = Readings(
        simulate,
        stamped(Scenario(gpus=(busy, other)).with_faults(*without_util(Code.NOT_SUPPORTED, gpu=1))),
    )
    name = pynvml.nvmlDeviceGetName
    if as_bytes:
        monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: name(handle).encode())
    for _ in range(5):
        values = run.window()
        assert (values["perf_gpu0/util_pct"], values["perf_gpu0/mem_busy_pct"]) == (70, 40)
        assert (values["perf/gpu_util_pct"], values["perf/mem_busy_pct"]) == (70, 40)
        assert not {"perf_gpu1/util_pct", "perf_gpu1/mem_busy_pct"} & values.keys()
        assert values["perf_gpu1/temp_c"] == 58
    assert [facts.name for facts in run.sampler.describe()] == ["NVIDIA H200"] * 2
    absent = run.sampler.absent()
    assert "perf_gpu1/util_pct" in absent
    assert "perf_gpu/util_pct" not in absent


@pytest.mark.parametrize("code", [Code.NO_PERMISSION, Code.LIB_RM_VERSION_MISMATCH, Code.DRIVER_NOT_LOADED])
def test_driver_that_refuses(simulate: Simulate, caplog: pytest.LogCaptureFixture, code: Code) -> None:
    """A driver that cannot be initialised is one warning with its own words, and the reason of all series."""
    run = Readings(simulate, presets.h200().with_faults(Fault(function="nvmlInit", code=code)))
    assert [run.window() for _ in range(5)] == [{}] * 5
    words = str(pynvml.NVMLError(code))
    assert len(messages(caplog, words, level=logging.WARNING)) == 1
    absent = run.sampler.absent()
    assert all(words in reason for reason in absent.values())
    assert {"perf/gpu_util_pct", "perf/mem_bw_pct", "perf/mem_busy_pct"} <= absent.keys()


def test_driver_that_comes_later(simulate: Simulate) -> None:
    """A driver that refused at first is asked again, and then everything is there."""
    run = Readings(
        simulate,
        stamped(presets.h200()).with_faults(
            Fault(function="nvmlInit", code=Code.DRIVER_NOT_LOADED, end_s=5.0)
        ),
    )
    assert run.window() == {}
    for _ in range(4):
        values = run.window()
    assert values["perf/gpu_util_pct"] == pytest.approx(92)
    assert run.sampler.absent().keys() == {"perf_gpu/torch_reserved_gib", "perf_gpu/torch_peak_gib"}


@pytest.mark.parametrize("asked_for", [True, False])
def test_no_driver(simulate: Simulate, caplog: pytest.LogCaptureFixture, asked_for: bool) -> None:
    """Without a driver nothing is measured; that is a warning only where a GPU was asked for."""
    caplog.set_level(logging.INFO)
    run = Readings(simulate, presets.no_driver(), devices=[0] if asked_for else None)
    assert [run.window() for _ in range(3)] == [{}] * 3
    assert len(messages(caplog, "NVML Shared Library Not Found")) == 1
    assert bool(messages(caplog, level=logging.WARNING)) is asked_for
    assert "no NVIDIA driver" in run.sampler.absent()["perf/gpu_util_pct"]


def test_handle_without_permission(simulate: Simulate, caplog: pytest.LogCaptureFixture) -> None:
    """A GPU that may not be asked does not keep the other from being read, and keeps its number."""
    gpus = (
        presets.H200,
        replace(presets.H200, uuid="GPU-b", timeline=(replace(presets.BUSY, util_pct=55.0),)),
    )
    fault = Fault(function="nvmlDeviceGetHandleByIndex", code=Code.NO_PERMISSION, gpu=0)
    run = Readings(simulate, stamped(Scenario(gpus=gpus).with_faults(fault)))
    for _ in range(5):
        values = run.window()
        assert values["perf_gpu1/util_pct"] == values["perf/gpu_util_pct"] == 55
        assert not any(key.startswith("perf_gpu0/") for key in values)
    assert len(messages(caplog, "GPU 0", "Insufficient Permissions", level=logging.WARNING)) == 1
    assert run.facts(0).state.state == "denied"
    assert "Insufficient Permissions" in run.sampler.absent()["perf_gpu0/util_pct"]


@pytest.mark.parametrize("parent_util", [False, True])
def test_slice(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, parent_util: bool
) -> None:
    """A MIG slice has its own memory and activity, and no utilisation: neither 0 nor its neighbours'."""
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", presets.MIG_UUID)
    scenario = presets.divided()
    scenario = replace(scenario, gpus=(replace(scenario.gpus[0], mig_parent_util=parent_util),))
    run = Readings(simulate, stamped(scenario))
    values = [run.window() for _ in range(3)][-1]
    assert not any("util" in key or "mem_busy" in key for key in values)
    assert values["perf_gpu/mem_used_gib"] == pytest.approx(3e9 / 2**30)
    assert values["perf/mem_bw_pct"] == pytest.approx(12)
    assert values["perf_gpu/sm_active_pct"] == pytest.approx(55)
    assert not {"perf_gpu/mem_bw_gb_s", "perf_gpu/power_w", "perf_gpu/temp_c"} & values.keys()
    absent = run.sampler.absent()
    assert absent["perf/gpu_util_pct"].startswith("MIG")
    assert absent["perf/mem_busy_pct"].startswith("MIG")
    assert len(messages(caplog, "util_pct", "MIG")) == 1
    assert (run.facts().mig, run.facts().match) == (True, "mig")


@pytest.mark.parametrize("parent_util", [False, True])
def test_divided_gpu_found_by_bus(simulate: Simulate, parent_util: bool) -> None:
    """Where only the GPU of a slice is found, nothing that its tenants share is taken for the run's."""
    scenario = presets.divided()
    gpu = replace(scenario.gpus[0], mig_parent_util=parent_util)
    torch = as_torch(gpu, uuid="99999999-9999-9999-9999-999999999999", name="NVIDIA H200 MIG 1g.18gb")
    run = Readings(simulate, stamped(replace(scenario, gpus=(gpu,))), rank_devices=lambda: [torch])
    values = run.window()
    assert {key for key in values if key.startswith("perf_gpu0/")} == {
        "perf_gpu0/temp_c",
        "perf_gpu0/thermal_throttle_pct",
        "perf_gpu0/sm_clock_mhz",
        "perf_gpu0/mem_clock_mhz",
    }
    assert run.sampler.absent()["perf/mem_busy_pct"].startswith("MIG")
    assert run.facts().match == "pci"


def test_slice_through_its_parent(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver samples a slice by its number in the GPU only, that is what is done."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", presets.MIG_UUID)
    fault = Fault(function="nvmlGpmSampleGet", code=Code.INVALID_ARGUMENT)
    run = Readings(simulate, presets.divided().with_faults(fault))
    assert run.window()["perf/mem_bw_pct"] == pytest.approx(12)
    assert run.sim.calls("nvmlGpmMigSampleGet") > 0


def test_device_that_there_is_not(simulate: Simulate, caplog: pytest.LogCaptureFixture) -> None:
    """A device that was asked for and does not exist is told, and the other one is read."""
    caplog.set_level(logging.INFO)
    run = Readings(simulate, stamped(presets.two_gpus()), devices=["GPU-nothing", 7, 1])
    values = [run.window() for _ in range(4)][-1]
    assert values["perf/gpu_util_pct"] == values["perf_gpu2/util_pct"] == 20
    assert len(messages(caplog, "GPU 0 (GPU-nothing)")) == 1
    assert len(messages(caplog, "GPU 1 (7)")) == 1


def test_nothing_in_use_yet(simulate: Simulate) -> None:
    """A process that takes up a GPU late has it from that window on, and a reason until then."""
    own: list[TorchDevice] = []
    run = Readings(simulate, stamped(presets.h200()), rank_devices=lambda: own)
    assert [run.window() for _ in range(10)] == [{}] * 10
    assert run.sampler.absent()["perf/gpu_util_pct"]
    own.append(as_torch(presets.H200))
    assert run.window()["perf/gpu_util_pct"] == pytest.approx(92)


def test_lost_device(simulate: Simulate, caplog: pytest.LogCaptureFixture) -> None:
    """A GPU that falls off the bus is one warning; the other goes on, and it comes back with its energy."""
    caplog.set_level(logging.INFO)
    run = Readings(simulate, stamped(presets.two_gpus()))
    run.window()
    run.sim.inject(Fault(function="*", code=Code.GPU_IS_LOST, gpu=0, start_s=2.1, end_s=7.0))
    run.window(2.2)
    lost = run.window()
    assert not any(key.startswith("perf_gpu0/") for key in lost)
    assert lost["perf/gpu_util_pct"] == 20
    assert "GPU is lost" in run.sampler.absent()["perf_gpu0/util_pct"]
    found = run.sim.calls("nvmlDeviceGetHandleByIndex")
    for _ in range(4):
        values = run.window()
    assert values["perf/gpu_util_pct"] == 15
    assert values["perf_gpu0/energy_j"] == pytest.approx(310 * 14.2, abs=10)
    assert len(messages(caplog, "GPU 0", level=logging.WARNING)) == 1
    assert len(messages(caplog, "GPU 0", "answers again")) == 1
    assert run.sim.calls("nvmlDeviceGetHandleByIndex") > found


def test_library_shut_down_by_others(simulate: Simulate, caplog: pytest.LogCaptureFixture) -> None:
    """When somebody in the process shuts the library down once too often, it is opened again."""
    run = Readings(simulate, stamped(presets.two_gpus()))
    run.window()
    samples = run.sim.gpm_samples
    pynvml.nvmlShutdown()
    assert run.window(1.0) == {}
    for _ in range(3):
        values = run.window()
    assert len(messages(caplog, "Uninitialized", level=logging.WARNING)) == 1
    assert values["perf/gpu_util_pct"] == 15
    assert values["perf/mem_bw_pct"] == pytest.approx(37)
    assert run.sim.gpm_samples == samples + 4


def test_no_garbage(simulate: Simulate, caplog: pytest.LogCaptureFixture) -> None:
    """Values that cannot be true are counted and told once, and the window is of the others."""
    wrong = [
        Garbage(function="nvmlDeviceGetSamples", part=1, value=4e9, start_s=2.5, end_s=3.1),
        Garbage(function="nvmlDeviceGetUtilizationRates", part=0, value=255, start_s=2.2, end_s=3.1),
        Garbage(function="nvmlDeviceGetTemperatureV", value=255, start_s=2.2, end_s=3.1),
        Garbage(function="nvmlGpmMetricsGet", part=10, value=400, start_s=2.2, end_s=4.1),
    ]
    run = Readings(simulate, stamped(presets.h200()).with_garbage(*wrong))
    run.window()
    values = run.window()
    assert values["perf/gpu_util_pct"] == pytest.approx(92)
    assert values["perf_gpu/temp_c"] == 58
    assert "perf/mem_bw_pct" not in values
    counters = run.facts().counters
    assert counters["util_pct"].rejected >= 5
    assert (counters["temp_c"].rejected, counters["mem_bw_pct"].rejected) == (1, 1)
    assert run.window()["perf/mem_bw_pct"] == pytest.approx(37)
    for name in ("util_pct", "temp_c", "mem_bw_pct"):
        assert len(messages(caplog, f"{name} of GPU 0", "counted", level=logging.WARNING)) == 1


def test_integrated_gpu(simulate: Simulate) -> None:
    """On a GPU without memory of its own, memory that is never busy is unknown, not idle."""
    run = Readings(simulate, stamped(presets.integrated()))
    values = run.window()
    assert values["perf/gpu_util_pct"] == pytest.approx(92)
    assert not any("mem" in key for key in values)
    assert "shares" in run.sampler.absent()["perf/mem_busy_pct"]


def test_old_driver(simulate: Simulate, caplog: pytest.LogCaptureFixture) -> None:
    """A driver that lacks the newer functions is read by the older ones; nothing is a warning."""
    caplog.set_level(logging.INFO)
    hot = replace(presets.BUSY, reasons=0x20)
    scenario = presets.old_driver()
    scenario = replace(scenario, gpus=(replace(scenario.gpus[0], timeline=(hot,)),))
    values = Readings(simulate, stamped(scenario)).window()
    assert values["perf_gpu/temp_c"] == 58
    assert values["perf_gpu/thermal_throttle_pct"] == 100
    assert values["perf_gpu/mem_used_gib"] == pytest.approx(12e9 / 2**30)
    assert not messages(caplog, level=logging.WARNING)
    assert len(messages(caplog, "GPM", "too old")) == 1


def test_devices_that_cannot_be_told(simulate: Simulate) -> None:
    """Whatever goes wrong in finding the run's own devices is a reason, not an error."""

    def broken() -> list[TorchDevice]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    run = Readings(simulate, presets.h200(), rank_devices=broken)
    assert run.window() == {}
    assert "illegal memory access" in run.sampler.absent()["perf/gpu_util_pct"]
