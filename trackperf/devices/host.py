"""CPU and memory of the training process and its children, against what they may use."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["HostReadings", "allowed_cpus", "allowed_memory_bytes"]

_GIB: Final = 1024**3
_GONE: Final = (psutil.Error, OSError)
_SCAN_SHARE: Final = 200
_LIMIT_NS: Final = 60_000_000_000


def allowed_cpus(root: str | Path = "/", affinity: Callable[[], int] | None = None) -> float:
    """
    Return how many CPUs this process may use: 3.5 in a container with a quota of 350 ms every 100 ms.

    The least of the machine's CPUs, the affinity of the process (taskset, Slurm, cpusets), and the quotas of
    its control group and the groups above it, version 1 or 2. Systems without those have the machine's.

    Args:
        root: folder in which `proc` and `sys` are looked up.

        affinity: tells the number of CPUs without quotas; the operating system when not given.
    """
    cpus = float((affinity or _affinity)())
    for folder in _groups(Path(root), "cpu"):
        quota = _quota(folder)
        if quota is not None:
            cpus = min(cpus, quota)
    return cpus


def allowed_memory_bytes(root: str | Path = "/") -> int:
    """Return the memory that this process may use: the machine's, or less by the limits of control groups."""
    size = int(psutil.virtual_memory().total)
    for folder in _groups(Path(root), "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(folder / name)
            if words and words[0].isdigit():
                size = min(size, int(words[0]))
    return size


class HostReadings:
    """
    Reads the CPU use and the resident memory of this process, its children and theirs.

    CPU time is taken from the operating system's own counters between two reads, so that nothing in between
    is missed; what children had used when they ended is counted once. Memory is the sum of the resident sets:
    pages that several of them share, such as a dataset inherited by loader workers, count in each.

    Of one process, for one thread. The first read has no CPU use yet.
    """

    def __init__(
        self, clock: Callable[[], int] = time.perf_counter_ns, cpus: Callable[[], float] = allowed_cpus
    ) -> None:
        """
        Args:
            clock: monotonic time in nanoseconds.

            cpus: tells how many CPUs the process may use; asked again every minute.
        """
        self._clock = clock
        self._cpus = cpus
        self._allowed = 0.0
        self._allowed_until_ns: int | None = None
        self._me = psutil.Process()
        self._family: dict[int, psutil.Process] = {}
        self._scan_at_ns: int | None = None
        self._read_ns = 0
        self._before: dict[int, tuple[float, float]] = {}

    def read(self) -> dict[str, float]:
        """Return `perf_host/cpu_pct` and `perf_host/rss_gib`: those that could be read. Never raises."""
        try:
            return self._read()
        except Exception:  # noqa: BLE001 - a reading that fails is absent
            return {}

    def _read(self) -> dict[str, float]:
        self._look_for_children()
        now_ns = self._clock()
        rss = 0
        used: dict[int, tuple[float, float]] = {}
        for pid, process in [(self._me.pid, self._me), *self._family.items()]:
            measured = _measure(process)
            if measured is None:
                self._family.pop(pid, None)
            else:
                used[pid] = measured[:2]
                rss += measured[2]
        values = {"perf_host/rss_gib": rss / _GIB} if rss else {}
        elapsed_s = (now_ns - self._read_ns) / 1e9
        allowed = self._limit(now_ns)
        if self._before and self._me.pid in used and elapsed_s > 0 and allowed > 0:
            seconds = _used_between(self._before, used)
            values["perf_host/cpu_pct"] = 100 * seconds / (elapsed_s * allowed)
        self._before, self._read_ns = used, now_ns
        return values

    def _limit(self, now_ns: int) -> float:
        if self._allowed_until_ns is None or now_ns >= self._allowed_until_ns:
            self._allowed = 0.0
            with contextlib.suppress(Exception):  # without a limit there is no share, but memory there is
                self._allowed = self._cpus()
            self._allowed_until_ns = now_ns + _LIMIT_NS
        return self._allowed

    def _look_for_children(self) -> None:
        """Bring the list of children up to date, as often as costs at most half a percent of one CPU."""
        start_ns = self._clock()
        if self._scan_at_ns is not None and start_ns < self._scan_at_ns:
            return
        pids = _children(self._me)
        for pid in self._family.keys() - pids:
            del self._family[pid]
        for pid in pids - self._family.keys():
            with contextlib.suppress(*_GONE):
                self._family[pid] = psutil.Process(pid)
        end_ns = self._clock()
        self._scan_at_ns = end_ns + _SCAN_SHARE * (end_ns - start_ns)


def _used_between(before: dict[int, tuple[float, float]], after: dict[int, tuple[float, float]]) -> float:
    """
    Return the CPU seconds that were used between two readings of (own, ended children's) seconds.

    When a child ends, all that it ever used moves to its parent's second number: what was counted
    before is taken off. A child whose parent does not wait for it leaves nothing there, hence the 0.
    """
    own = ended = 0.0
    for pid, (mine, children) in after.items():
        mine_before, children_before = before.get(pid, (0.0, 0.0))
        own += max(0.0, mine - mine_before)
        ended += max(0.0, children - children_before)
    counted = sum(sum(before[pid]) for pid in before.keys() - after.keys())
    return own + max(0.0, ended - counted)


def _measure(process: psutil.Process) -> tuple[float, float, int] | None:
    """Return a process's own CPU seconds, those of its children that ended, and its resident bytes."""
    try:
        if process.pid == os.getpid():
            mine = os.times()  # no file to read, and psutil has no number for children on macOS
            rss = process.memory_info().rss
            return mine.user + mine.system, mine.children_user + mine.children_system, rss
        with process.oneshot():
            times = process.cpu_times()
            rss = process.memory_info().rss
    except _GONE:
        return None
    children = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return times.user + times.system, children, rss


def _children(process: psutil.Process) -> set[int]:
    """Return the ids of all processes below this one."""
    found: set[int] = set()
    if not Path(f"/proc/{process.pid}/task/{process.pid}/children").exists():
        return {child.pid for child in process.children(recursive=True)}
    # The kernel keeps the list; psutil reads every process of the machine for it.
    waiting = [process.pid]
    while waiting:
        for child in _children_of(waiting.pop()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _children_of(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - a quarter of the time
    except OSError:
        return
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb", 0) as file:  # noqa: PTH123
            yield from map(int, file.read().split())


def _affinity() -> int:
    machine = os.cpu_count() or 1
    if not hasattr(os, "sched_getaffinity"):
        return machine
    try:
        return min(machine, len(os.sched_getaffinity(os.getpid()))) or 1
    except OSError:
        return machine


def _quota(folder: Path) -> float | None:
    """Return the CPUs that a control group's quota allows, or None without one."""
    words = _words(folder / "cpu.max") or [
        *_words(folder / "cpu.cfs_quota_us"),
        *_words(folder / "cpu.cfs_period_us"),
    ]
    try:
        quota, period = map(int, words)
    except ValueError:
        return None  # "max", or no such file
    return quota / period if quota > 0 and period > 0 else None


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's control groups that may limit a controller, and of those above."""
    paths = {}
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") or (number == "0" and not controllers):
            paths["cgroup" if controllers else "cgroup2"] = PurePosixPath(path)
    for line in _lines(root / "proc/self/mountinfo"):
        place, _, kind = line.partition(" - ")
        fields, about = place.split(), kind.split()
        if len(fields) < 5 or len(about) < 3 or about[0] not in paths:
            continue
        if about[0] == "cgroup2" or controller in about[2].split(","):
            yield from _up(root, fields[4], PurePosixPath(fields[3]), paths[about[0]])


def _up(root: Path, mounted_at: str, mounted: PurePosixPath, path: PurePosixPath) -> Iterator[Path]:
    """Yield a group's folder and those above it, as far as they are mounted."""
    top = root / mounted_at.lstrip("/")
    below = path.relative_to(mounted) if path.is_relative_to(mounted) else PurePosixPath()
    if ".." not in below.parts:
        for part in (below, *below.parents):
            yield top / part


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
