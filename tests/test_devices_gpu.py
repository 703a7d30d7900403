"""The thread that reads: begun late, gone soon, alone in its process, and never waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from nvml_sim import At, Code, Fault, Scenario, presets

from trackperf.devices import gpu
from trackperf.devices.gpu import GpuReadings
from trackperf.devices.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nvml_sim import CallLog
    from nvml_sim.fixtures import Simulate

pytest_plugins = ["nvml_sim.fixtures"]
pynvml: Any = pytest.importorskip("pynvml")


def _no_library() -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


class Readers:
    """Makes readings that are closed when the test ends."""

    def __init__(self) -> None:
        self.made: list[GpuReadings] = []

    def __call__(self, **options: Any) -> GpuReadings:
        """Return readings of all GPUs there are."""
        readings = GpuReadings(rank_devices=lambda: None, **options)
        self.made.append(readings)
        return readings


@pytest.fixture
def readers() -> Iterator[Readers]:
    """Return a maker of readings."""
    made = Readers()
    yield made
    for readings in made.made:
        readings.close()
    assert not threads()


def threads() -> list[threading.Thread]:
    """Return the threads that read GPUs."""
    return [thread for thread in threading.enumerate() if thread.name == "trackperf-gpu"]


def until(readings: GpuReadings, key: str, seconds: float = 20.0) -> dict[str, float]:
    """Read windows of 0.3 s until one has a value."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        begin_ns = time.perf_counter_ns()
        threading.Event().wait(0.3)
        values = readings.read(begin_ns, time.perf_counter_ns())
        if key in values:
            return values
    raise AssertionError(f"{key} did not come: {readings.absent()}")


def test_real_time(simulate: Simulate, readers: Readers) -> None:
    """On its own thread, in real time and by the machine's own clocks, the readings are right."""
    simulate(presets.h200(), virtual=False)
    readings = readers()
    readings.start()
    readings.start()
    assert len(threads()) == 1
    values = until(readings, "perf/mem_bw_pct")
    assert values["perf/gpu_util_pct"] == pytest.approx(92)
    assert values["perf/mem_bw_pct"] == pytest.approx(37)
    assert [facts.name for facts in readings.describe()] == ["NVIDIA H200"]
    assert readings.absent().keys() == {"perf_gpu/torch_reserved_gib", "perf_gpu/torch_peak_gib"}


def test_nothing_before_start_and_after_close(simulate: Simulate, readers: Readers) -> None:
    """Before the start and after the end there is no thread, no call to the driver and no value."""
    sim = simulate(presets.h200())
    readings = readers()
    assert (readings.read(0, 10**9), readings.absent(), readings.describe()) == ({}, {}, [])
    assert not threads()
    assert sim.calls("nvmlInit") == 0
    readings.start()
    assert readings.describe()
    readings.close()
    readings.close()
    assert (readings.read(0, 10**9), readings.absent(), readings.describe()) == ({}, {}, [])
    assert sim.calls("nvmlShutdown") == 1
    readings.start()
    assert readings.describe()


def test_no_driver_needs_no_thread(monkeypatch: pytest.MonkeyPatch, readers: Readers) -> None:
    """Where no driver is found the thread ends by itself, and every question is answered at once."""
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", _no_library)
    readings = readers(answer_s=60.0)
    readings.start()
    for thread in threads():
        thread.join(20.0)
    assert not threads()
    assert (readings.read(0, 10**9), readings.describe()) == ({}, [])
    assert "no NVIDIA driver was found" in readings.absent()["perf/gpu_util_pct"]


def test_close_does_not_wait_for_the_next_poll(simulate: Simulate, readers: Readers) -> None:
    """A thread that sleeps until its next poll ends when it is told to."""
    simulate(presets.h200())
    readings = readers()
    readings.start()
    readings.describe()
    begin = time.monotonic()
    readings.close()
    assert time.monotonic() - begin < 0.4
    assert not threads()


def test_driver_that_hangs(
    simulate: Simulate, readers: Readers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that does not come back costs windows their values, one wait, and one warning."""
    monkeypatch.setattr(gpu, "_CLOSE_S", 0.1)
    sim = simulate(presets.h200().with_latency("nvmlDeviceGetPowerUsage", 1_500_000))
    readings = readers(answer_s=0.2)
    readings.start()
    begin = time.monotonic()
    assert [readings.read(1, 2) for _ in range(20)] == [{}] * 20
    assert time.monotonic() - begin < 1.0
    assert readings.absent()["perf/gpu_util_pct"] == "the NVIDIA driver has not answered"
    assert len([record for record in caplog.records if "did not answer" in record.getMessage()]) == 1
    readings.close()
    assert time.monotonic() - begin < 1.4
    sim.slow_down("nvmlDeviceGetPowerUsage", 0)
    for thread in threads():
        thread.join(20)


def test_answers_again_after_it_hung(simulate: Simulate, readers: Readers) -> None:
    """When the driver comes back, so do the values."""
    sim = simulate(presets.h200().with_latency("nvmlDeviceGetPowerUsage", 500_000), virtual=False)
    readings = readers(answer_s=0.1)
    readings.start()
    assert readings.read(1, 2) == {}
    sim.slow_down("nvmlDeviceGetPowerUsage", 0)
    assert until(readings, "perf/gpu_util_pct")["perf/gpu_util_pct"] == pytest.approx(92)


def test_error_of_our_own(
    simulate: Simulate, readers: Readers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even an error in the readings themselves is one warning and no values, and the thread lives."""
    simulate(presets.h200())
    readings = readers()
    monkeypatch.setattr(Sampler, "read", lambda *_: 1 / 0)
    readings.start()
    assert [readings.read(0, 10**9) for _ in range(3)] == [{}] * 3
    assert len([record for record in caplog.records if "could not be read" in record.getMessage()]) == 1
    assert threads()


def test_worker_of_a_loader_reads_nothing(
    simulate: Simulate, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a worker of a loader, start does nothing."""
    sim = simulate(presets.h200())
    monkeypatch.setattr(gpu, "in_loader_worker", lambda: True)
    readers().start()
    assert not threads()
    assert sim.calls("nvmlInit") == 0


def child(body: str, variables: dict[str, str]) -> Any:
    """Run a script on a simulated machine and return the JSON in its last line."""
    script = "import json, os, sys, time\nfrom trackperf.devices.gpu import GpuReadings\n"
    done = subprocess.run(
        [sys.executable, "-c", script + textwrap.dedent(body)],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


READ = """
def read(readings, key="perf/gpu_util_pct"):
    for _ in range(100):
        begin = time.perf_counter_ns()
        time.sleep(0.25)
        values = readings.read(begin, time.perf_counter_ns())
        if key in values:
            return values[key]
"""


def test_fork(driver_for: Callable[[Scenario], dict[str, str]], driver_log: CallLog) -> None:
    """A forked child reads nothing of its parent's, and its own after it has started itself."""
    body = (
        READ
        + """
        readings = GpuReadings()
        readings.start()
        before = read(readings)
        pipe_out, pipe_in = os.pipe()
        pid = os.fork()
        if pid == 0:
            told = [readings.read(0, 10**9), readings.absent(), readings.describe()]
            readings.start()
            told.append(read(readings))
            readings.close()
            os.write(pipe_in, json.dumps(told).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        print(json.dumps([before, json.loads(os.read(pipe_out, 10000)), read(readings)]))
        readings.close()
    """.replace("\n        ", "\n")
    )
    before, told, after = child(body, driver_for(presets.h200()))
    assert (before, after) == (92, 92)
    assert told == [{}, {}, [], 92]
    assert len(set(driver_log.initialised)) == 2


def test_no_driver_at_all(driver_for: Callable[[Scenario], dict[str, str]]) -> None:
    """On a machine without a driver a process reads nothing, says why, and ends."""
    body = """
    readings = GpuReadings()
    readings.start()
    print(json.dumps([readings.read(0, 10**9), readings.absent()["perf/gpu_util_pct"]]))
    """
    values, reason = child(body, driver_for(presets.no_driver()))
    assert values == {}
    assert "no NVIDIA driver" in reason


def test_process_ends_without_close(driver_for: Callable[[Scenario], dict[str, str]]) -> None:
    """A process that forgets to close ends all the same, though the driver hangs."""
    slow = presets.h200().with_latency("nvmlDeviceGetUtilizationRates", 30_000_000)
    begin = time.monotonic()
    body = """
    readings = GpuReadings(answer_s=0.1)
    readings.start()
    print(json.dumps(readings.read(0, 10**9)))
    """
    assert child(body, driver_for(slow)) == {}
    assert time.monotonic() - begin < 15


def test_denied_in_another_process(driver_for: Callable[[Scenario], dict[str, str]]) -> None:
    """Permission that is missing from the start is one warning on the user's screen."""
    scenario = presets.two_gpus().with_faults(
        *(Fault(function=name, code=Code.NO_PERMISSION, gpu=0) for name in ("nvmlGpmSampleGet",))
    )
    body = """
    import logging
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("trackperf").addHandler(handler)
    readings = GpuReadings()
    readings.start()
    for _ in range(4):
        begin = time.perf_counter_ns()
        time.sleep(0.3)
        values = readings.read(begin, time.perf_counter_ns())
    print(json.dumps([lines, values]))
    """
    lines, values = child(body, driver_for(scenario))
    assert len(lines) == 1
    assert "GPM of GPU 0" in lines[0]
    assert values["perf/mem_bw_pct"] == pytest.approx(37)
    assert "perf_gpu1/mem_bw_gb_s" in values
    assert "perf_gpu0/mem_bw_gb_s" not in values


def test_moving_load(simulate: Simulate, readers: Readers) -> None:
    """What changes while the thread runs is seen."""
    sim = simulate(Scenario(gpus=(replace(presets.H200, timeline=(presets.BUSY,)),)), virtual=False)
    readings = readers()
    readings.start()
    until(readings, "perf/gpu_util_pct")
    sim.append(At(s=sim.now_s, temp_c=77.0))
    give_up = time.monotonic() + 20
    while until(readings, "perf_gpu/temp_c")["perf_gpu/temp_c"] < 77 and time.monotonic() < give_up:
        pass
    assert time.monotonic() < give_up
