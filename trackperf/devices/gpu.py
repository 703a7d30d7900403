"""
The GPUs of a run, read by a thread of their own: a driver that hangs holds up nobody else.

Nothing is loaded and no thread runs before `start`. In a forked child everything does nothing, until it calls
`start` itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trackperf.devices.mapping import TorchDevice, own_devices
from trackperf.devices.sampler import GPU_KEYS, Sampler
from trackperf.distributed import in_loader_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackperf.devices.facts import DeviceFacts

__all__ = ["GpuReadings"]

T = TypeVar("T")

_log: Final = logging.getLogger("trackperf")
_ANSWER_S: Final = 1.0
_CLOSE_S: Final = 1.0


class GpuReadings:
    """
    Utilisation, memory bandwidth and the rest of the run's GPUs, a window at a time.

    Where there is no GPU, no driver or no permission, everything is absent and `absent` says why. Nothing
    here raises. The times of windows are of `clock`.
    """

    def __init__(
        self,
        devices: Sequence[str | int] | None = None,
        *,
        rank_devices: Callable[[], Sequence[TorchDevice] | None] = own_devices,
        clock: Callable[[], int] = time.perf_counter_ns,
        wall: Callable[[], int] = time.time_ns,
        answer_s: float = _ANSWER_S,
    ) -> None:
        """
        Args:
            devices: UUIDs or the driver's indices; the run's own when not given.

            rank_devices: returns the run's own; None where that is all that `CUDA_VISIBLE_DEVICES` leaves.

            clock: monotonic nanoseconds.

            wall: nanoseconds since the epoch.

            answer_s: how long the driver may take to answer before a window goes without.
        """
        self._make = partial(Sampler, devices, rank_devices=rank_devices, clock=clock, wall=wall)
        self._answer_s = answer_s
        self._worker: _Worker | None = None

    def start(self) -> None:
        """Begin to read; does nothing if that has begun, or in a worker of a loader."""
        if self._here is None and not in_loader_worker():
            self._worker = _Worker(self._make(), self._answer_s)
            self._worker.start()

    def read(self, begin_ns: int, end_ns: int) -> dict[str, float]:
        """
        Return values of a window that has just closed, by series key; what was not measured is not in it.

        Args:
            begin_ns: start of the window.

            end_ns: its end.
        """
        worker = self._here
        return {} if worker is None else worker.ask(lambda sampler: sampler.read(begin_ns, end_ns), {})

    def absent(self) -> dict[str, str]:
        """Return why each series that cannot be measured now is absent, by key."""
        worker = self._here
        silence = dict.fromkeys(GPU_KEYS, "the NVIDIA driver has not answered")
        return {} if worker is None else worker.ask(lambda sampler: sampler.absent(), silence)

    def describe(self) -> list[DeviceFacts]:
        """Return what there is to say of each of the run's GPUs."""
        worker = self._here
        return [] if worker is None else worker.ask(lambda sampler: sampler.describe(), [])

    def close(self) -> None:
        """Stop reading; comes back at once, and within a second if the driver hangs."""
        worker, self._worker = self._here, None
        if worker is not None:
            worker.close()

    @property
    def _here(self) -> _Worker | None:
        """The worker, if it is one of this process."""
        worker = self._worker
        return worker if worker is not None and worker.pid == os.getpid() else None


class _Worker:
    """The thread, and how it is asked; where there is no driver it ends, and whoever asks is told at once."""

    def __init__(self, sampler: Sampler, answer_s: float) -> None:
        self.pid = os.getpid()
        self._sampler = sampler
        self._answer_s = answer_s
        self._requests: queue.SimpleQueue[Callable[[Sampler], None] | None] = queue.SimpleQueue()
        self._late: threading.Event | None = None
        self._over = False
        self._complained: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="trackperf-gpu", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, question: Callable[[Sampler], T], otherwise: T) -> T:
        """Return the answer to a question, or something else if it takes too long or fails."""
        late = self._late
        if late is not None and not late.is_set():
            return otherwise
        done, answers = threading.Event(), []

        def answer(sampler: Sampler) -> None:
            try:
                answers.append(question(sampler))
            finally:
                done.set()

        self._requests.put(answer)
        if self._over:
            self._answer_all()
        if not done.wait(self._answer_s):
            self._late = done
            self._complain("slow", f"the NVIDIA driver did not answer within {self._answer_s:g} s")
        return answers[0] if answers else otherwise

    def close(self) -> None:
        self._requests.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        self._guarded(lambda sampler: sampler.poll())
        while not self._sampler.hopeless:
            request: Any = None
            try:
                request = self._requests.get(timeout=self._sampler.period_s)
            except queue.Empty:
                self._guarded(lambda sampler: sampler.poll())
                continue
            if request is None:
                self._guarded(lambda sampler: sampler.close())
                return
            self._guarded(request)
        self._over = True
        self._answer_all()

    def _answer_all(self) -> None:
        """Answer what waits, when there is no driver that could hold anybody up."""
        with contextlib.suppress(queue.Empty):
            while True:
                request = self._requests.get_nowait()
                if request is not None:
                    self._guarded(request)

    def _guarded(self, work: Callable[[Sampler], None]) -> None:
        try:
            work(self._sampler)
        except Exception as error:  # noqa: BLE001 - the readings go on, and so does the training
            self._complain(type(error).__name__, "the GPUs could not be read", exc_info=True)

    def _complain(self, what: str, text: str, *, exc_info: bool = False) -> None:
        if what not in self._complained:
            self._complained.add(what)
            with contextlib.suppress(Exception):
                _log.warning("trackperf: %s", text, exc_info=exc_info)
