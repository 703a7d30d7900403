"""CPU and memory of the process and its children, on real processes and recorded control groups."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from typing import IO, TYPE_CHECKING

import psutil
import pytest

from trackperf.devices.host import HostReadings, allowed_cpus, allowed_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CPU = "perf_host/cpu_pct"
RSS = "perf_host/rss_gib"

# Burns as many CPU seconds as a line of its input says, then says so.
BURN = textwrap.dedent("""
    import sys, time
    print("ready", flush=True)
    for line in sys.stdin:
        end = time.process_time() + float(line)
        while time.process_time() < end:
            pass
        print("done", flush=True)
""")
PARENT = textwrap.dedent("""
    import subprocess, sys
    raise SystemExit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
""")


class Child:
    """A real process that uses CPU time when told to."""

    def __init__(self, *command: str) -> None:
        arguments = [sys.executable, "-c", *(command or (BURN,))]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect("ready")

    def expect(self, word: str) -> None:
        """Wait for a word from the process."""
        out: IO[str] | None = self.process.stdout
        assert out is not None
        assert out.readline().strip() == word

    def burn(self, seconds: float) -> None:
        """Have it use CPU time, and wait until it did."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        self.expect("done")

    def end(self) -> None:
        """End it and take its exit status."""
        self.process.kill()
        self.process.communicate(timeout=20)


@pytest.fixture
def child() -> Iterator[Child]:
    """Return a child process, ended after the test."""
    process = Child()
    yield process
    process.end()


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000_000

    def __call__(self) -> int:
        """Return the time."""
        return self.now_ns

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += int(seconds * 1e9)


@pytest.fixture
def clock() -> Clock:
    """Return a clock at some time."""
    return Clock()


def own_seconds() -> float:
    """Return the CPU seconds of this process alone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def test_first_read_has_no_cpu_use(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to compare the first reading with; memory is there at once."""
    monkeypatch.setattr("trackperf.devices.host._children", lambda process: set())
    values = HostReadings(clock, lambda: 4.0).read()
    assert {RSS} == set(values)
    assert psutil.Process().memory_info().rss / 1024**3 == pytest.approx(values[RSS], rel=0.3)


def test_children_count(clock: Clock, child: Child) -> None:
    """Half a CPU second of a child in a second on two CPUs is 25 %, and its memory counts."""
    readings = HostReadings(clock, lambda: 2.0)
    readings.read()
    before = own_seconds()
    child.burn(0.5)
    mine = own_seconds() - before
    clock.advance(1.0)
    values = readings.read()
    assert values[CPU] == pytest.approx(100 * (0.5 + mine) / 2, abs=3)
    assert values[RSS] > psutil.Process().memory_info().rss / 1024**3 + 0.003


def test_grandchildren_count(clock: Clock) -> None:
    """A process below a child counts as well."""
    child = Child(PARENT, BURN)
    readings = HostReadings(clock, lambda: 1.0)
    readings.read()
    child.burn(0.3)
    clock.advance(1.0)
    value = readings.read()[CPU]
    child.process.communicate(input="", timeout=20)
    assert 27 < value < 60


def test_child_that_ended(clock: Clock) -> None:
    """What a child used before it ended is counted once: none of it twice, none below zero."""
    child = Child()
    child.burn(0.4)
    readings = HostReadings(clock, lambda: 1.0)
    readings.read()
    child.burn(0.2)
    child.end()
    clock.advance(1.0)
    assert 17 < readings.read()[CPU] < 35
    clock.advance(1.0)
    assert 0 <= readings.read()[CPU] < 15


def test_child_between_two_reads(clock: Clock) -> None:
    """A child that began and ended between two reads, never seen alive, counts in full."""
    readings = HostReadings(clock, lambda: 1.0)
    readings.read()
    child = Child()
    child.burn(0.3)
    child.end()
    clock.advance(1.0)
    assert readings.read()[CPU] > 28


def test_child_that_nobody_waits_for(clock: Clock) -> None:
    """A child whose time is lost at its end, because its end is ignored, makes no negative number."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child = Child()
        child.burn(0.3)
        readings = HostReadings(clock, lambda: 1.0)
        readings.read()
        child.end()
        clock.advance(1.0)
        assert 0 <= readings.read()[CPU] < 15
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_children_that_nobody_reaped(clock: Clock, child: Child) -> None:
    """A child that was killed and not waited for is no error."""
    readings = HostReadings(clock, lambda: 1.0)
    readings.read()
    os.kill(child.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
    clock.advance(1.0)
    assert {CPU, RSS} == set(readings.read())


def test_clock_that_stands_still(clock: Clock) -> None:
    """Without time between two reads there is no CPU use, and no division by zero."""
    readings = HostReadings(clock, lambda: 1.0)
    readings.read()
    assert {RSS} == set(readings.read())


def test_limit_is_asked_again(clock: Clock) -> None:
    """A quota that changes while the run goes on is seen within a minute."""
    limits = [4.0, 2.0]
    readings = HostReadings(clock, lambda: limits.pop(0))
    readings.read()
    clock.advance(59.0)
    readings.read()
    assert limits == [2.0]
    clock.advance(1.0)
    readings.read()
    assert limits == []


def test_limit_that_fails(clock: Clock) -> None:
    """Without knowing how many CPUs there are to use no share is told; memory is."""

    def fail() -> float:
        raise RuntimeError("no such machine")

    readings = HostReadings(clock, fail)
    readings.read()
    clock.advance(1.0)
    assert set(readings.read()) == {RSS}


def test_a_read_is_cheap(child: Child) -> None:
    """A read takes 2 ms of CPU time at most, one with another."""
    readings = HostReadings()
    readings.read()
    before = time.thread_time()
    for _ in range(100):
        readings.read()
    assert (time.thread_time() - before) / 100 < 0.002


# Recorded from containers: the process's groups, what is mounted, the files of the groups.
V2 = "42 32 0:38 {root} /sys/fs/cgroup ro,nosuid,nodev shared:9 - cgroup2 cgroup rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:17 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 {root} /sys/fs/cgroup/memory ro,nosuid master:18 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
CGROUPS: dict[str, tuple[str, str, dict[str, str], float, int | None]] = {
    "version 2, container with its own view": (
        "0::/\n",
        V2.format(root="/"),
        {"cpu.max": "350000 100000\n", "memory.max": "1073741824\n"},
        3.5,
        2**30,
    ),
    "version 2, no limit": (
        "0::/\n",
        V2.format(root="/"),
        {"cpu.max": "max 100000\n", "memory.max": "max\n"},
        8,
        None,
    ),
    "version 2, limit of a group above": (
        "0::/system.slice/train.slice/job.scope\n",
        V2.format(root="/"),
        {
            "system.slice/train.slice/job.scope/cpu.max": "max 100000\n",
            "system.slice/train.slice/cpu.max": "200000 100000\n",
            "system.slice/train.slice/memory.max": "1073741824\n",
        },
        2,
        2**30,
    ),
    "version 2, seen from the host's names": (
        "0::/kubepods/pod1/c1\n",
        V2.format(root="/kubepods/pod1/c1"),
        {"cpu.max": "50000 100000\n"},
        0.5,
        None,
    ),
    "version 2, moved outside its own view": (
        "0::/../other\n",
        V2.format(root="/"),
        {"../other/cpu.max": "100000 100000\n"},
        8,
        None,
    ),
    "version 1, container": (
        "12:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/docker/ab\n",
        V1.format(root="/docker/ab"),
        {
            "cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "memory/memory.limit_in_bytes": "1073741824\n",
        },
        1.5,
        2**30,
    ),
    "version 1, no limit": (
        "12:memory:/\n4:cpu,cpuacct:/\n0::/\n",
        V1.format(root="/"),
        {
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        8,
        None,
    ),
    "version 1, limit of a group above": (
        "4:cpu,cpuacct:/slurm/job_7/step_0\n",
        V1.format(root="/"),
        {
            "cpu,cpuacct/slurm/job_7/cpu.cfs_quota_us": "400000\n",
            "cpu,cpuacct/slurm/job_7/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/slurm/job_7/step_0/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/slurm/job_7/step_0/cpu.cfs_period_us": "100000\n",
        },
        4,
        None,
    ),
    "more quota than CPUs": ("0::/\n", V2.format(root="/"), {"cpu.max": "6400000 100000\n"}, 8, None),
    "damaged": ("0::/\nnonsense\n", V2.format(root="/") + "nonsense\n", {"cpu.max": "lots\n"}, 8, None),
    "no control groups": ("", "", {}, 8, None),
}


@pytest.mark.parametrize("case", CGROUPS)
def test_control_groups(case: str, tmp_path: Path) -> None:
    """The least of what the process's group and those above it allow is what it may use."""
    groups, mounts, files, cpus, memory = CGROUPS[case]
    for name, text in [("proc/self/cgroup", groups), ("proc/self/mountinfo", mounts)]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert cpus == allowed_cpus(tmp_path, lambda: 8)
    assert (memory or psutil.virtual_memory().total) == allowed_memory_bytes(tmp_path)


def test_system_without_control_groups(tmp_path: Path) -> None:
    """Where there is neither `/proc` nor `/sys`, as on macOS, the machine's own numbers stand."""
    assert allowed_cpus(tmp_path, lambda: 10) == 10
    assert psutil.virtual_memory().total == allowed_memory_bytes(tmp_path)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity() -> None:
    """A process that is bound to one CPU may use one, also when a thread of it asks."""
    code = (
        "import os, threading\n"
        "from trackperf.devices.host import allowed_cpus\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "thread = threading.Thread(target=lambda: print(allowed_cpus()))\n"
        "thread.start(); thread.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 1.0


def test_this_machine() -> None:
    """Some CPUs and some memory may be used here, and not more than there are."""
    assert 0 < allowed_cpus() <= (os.cpu_count() or 1)
    assert 0 < allowed_memory_bytes() <= psutil.virtual_memory().total
